//! Many requests in one message, on `ShouldRateLimitBatch` and its stream.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use porteiro::{
    api::{
        bounds::Bounds, envoy_rls::AnswerOptions, headers::HeaderNames, limiter::Limiter,
        wire::Asked as _,
    },
    model::time::Timestamp,
    proto::{
        envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::Entry,
            },
            service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
        },
        porteiro::v1::{
            ShouldRateLimitBatchRequest, ShouldRateLimitBatchResponse,
            limiter_service_client::LimiterServiceClient, limiter_service_server::LimiterService,
            should_rate_limit_batch_response::answer::Answer,
        },
    },
};
use proptest::prelude::*;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Status};

use crate::{
    serving::{TestServer, ask, within},
    support::{REQUEST, Service, message, now, service},
};

const RULES: &str = "
domain: edge
stacking: all_or_nothing
answer: {headers: [x_ratelimit, retry_after]}
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: tenant
  limits: [{algorithm: token_bucket, rate: 5/s, burst: 3}]
- key: slow
  limits: [{algorithm: leaky_queue, rate: 10/s, burst: 20, hold: true}]
";

fn stage() -> (Service, Limiter) {
    let files = BTreeMap::from([("edge.yaml".to_owned(), RULES.to_owned())]);
    let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
    let limiter = Limiter::new(Arc::clone(&service.engine), Bounds::default());
    (service, limiter)
}

fn request(json: &Value) -> RateLimitRequest {
    message(REQUEST, json)
}

fn user(name: &str) -> RateLimitRequest {
    ask("edge", "user", name)
}

fn batch(requests: Vec<RateLimitRequest>) -> ShouldRateLimitBatchRequest {
    ShouldRateLimitBatchRequest { requests }
}

async fn decide(limiter: &Limiter, requests: Vec<RateLimitRequest>) -> Result<Vec<Answer>, Status> {
    let answer = limiter.should_rate_limit_batch(Request::new(batch(requests)));
    Ok(answers(answer.await?.into_inner()))
}

fn answers(response: ShouldRateLimitBatchResponse) -> Vec<Answer> {
    let answers = response.answers.into_iter();
    answers.map(|answer| answer.answer.unwrap()).collect()
}

fn code(answer: &Answer) -> Code {
    match answer {
        Answer::Response(response) => response.overall_code(),
        Answer::Problem(problem) => panic!("{problem:?}"),
    }
}

/// What the server does with a message: it is read in place where that is enough.
async fn asked(service: &Service, message: &[u8]) -> Result<Vec<Answer>, Status> {
    let rate_limit = Arc::new(service.rls.clone());
    let answer = rate_limit.ask_batch(Request::new(message.to_vec())).await;
    let bytes = answer?.into_inner().0;
    Ok(answers(
        ShouldRateLimitBatchResponse::decode(&*bytes).unwrap(),
    ))
}

/// Few names, so that they meet in counters, and everything that is read in full or refused.
fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    let key = prop::sample::select(vec!["user", "tenant", "other"]);
    let value = prop::sample::select(vec!["ana", "bea", "", "ä€"]);
    let entries = prop::collection::vec((key, value), 1..3);
    let own_cost = prop::option::weighted(0.1, 0..4_u64);
    let descriptor = (entries, own_cost).prop_map(|(entries, hits_addend)| {
        let entry = |(key, value): (&str, &str)| Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            hits_addend,
            ..RateLimitDescriptor::default()
        }
    });
    let domain = prop::sample::select(vec!["edge", "edge", "edge", "nowhere", ""]);
    let descriptors = prop::collection::vec(descriptor, 0..4);
    (domain, descriptors, 0..3_u32).prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest {
            domain: domain.to_owned(),
            descriptors,
            hits_addend,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_batch_answers_as_its_requests_one_by_one(
        requests in prop::collection::vec(any_request(), 0..12),
    ) {
        let (alone, _) = stage();
        let (together, _) = stage();
        let one_by_one: Vec<_> = requests.iter().map(|request| alone.ask(request)).collect();
        let message = batch(requests).encode_to_vec();
        let answers = now(asked(&together, &message)).unwrap();
        prop_assert_eq!(answers.len(), one_by_one.len());
        for (single, batched) in one_by_one.into_iter().zip(answers) {
            match (single, batched) {
                (Ok(single), Answer::Response(batched)) => prop_assert_eq!(single, batched),
                (Err(single), Answer::Problem(batched)) => {
                    prop_assert_eq!(batched.code, i32::from(single.code()));
                    prop_assert_eq!(batched.text, single.message());
                }
                (single, batched) => prop_assert!(false, "{single:?} and {batched:?}"),
            }
        }
        prop_assert_eq!(counted(&together), counted(&alone));
    }

    #[test]
    fn no_bytes_bring_the_server_down(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let (service, _) = stage();
        let _ = now(asked(&service, &bytes));
    }
}

#[test]
fn a_message_that_is_cut_off_decides_nothing() {
    let (service, _) = stage();
    let message = batch(vec![user("ana"), user("ana")]).encode_to_vec();
    let cut = &message[..message.len() - 1];
    let status = now(asked(&service, cut)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Internal);
    let answers = now(asked(&service, &message)).unwrap();
    assert_eq!(answers.iter().map(code).collect::<Vec<_>>(), [Code::Ok; 2]);
    let many = batch(vec![user("bea"); 1_001]).encode_to_vec();
    let status = now(asked(&service, &many)).unwrap_err();
    assert!(status.message().contains("at most 1000"), "{status:?}");
}

/// What the stream and the batch are measured by: the same requests, one by one, at a server that
/// has seen nothing else.
#[test]
fn every_answer_is_what_the_single_call_says() {
    let descriptor = |key: &str, value: &str| json!({"entries": [{"key": key, "value": value}]});
    let both = json!({
        "domain": "edge",
        "descriptors": [descriptor("user", "ana"), descriptor("tenant", "acme")],
    });
    let requests = vec![
        user("ana"),
        request(&json!({"domain": "", "descriptors": [descriptor("user", "ana")]})),
        request(&json!({"domain": "edge", "descriptors": vec![descriptor("user", "ana"); 33]})),
        request(&both),
        request(&both),
        user("bea"),
        ask("nowhere", "user", "ana"),
        request(&json!({"domain": "edge", "descriptors": [
            {"entries": [{"key": "user", "value": "ana"}], "limit": {"requests_per_unit": 5}},
        ]})),
        request(
            &json!({"domain": "edge", "descriptors": [descriptor("tenant", "acme")],
                        "hits_addend": 3}),
        ),
        user("bea"),
        user("bea"),
    ];
    let (alone, _) = stage();
    let (together, limiter) = stage();
    let one_by_one: Vec<_> = requests.iter().map(|request| alone.ask(request)).collect();
    let count = requests.len();
    let batch = now(decide(&limiter, requests)).unwrap();
    assert_eq!(batch.len(), count);
    let mut problems = 0;
    for (index, (single, batched)) in one_by_one.into_iter().zip(batch).enumerate() {
        match (single, batched) {
            (Ok(single), Answer::Response(batched)) => assert_eq!(single, batched, "{index}"),
            (Err(single), Answer::Problem(batched)) => {
                assert_eq!(batched.code, i32::from(single.code()), "{index}");
                assert_eq!(batched.text, single.message(), "{index}");
                problems += 1;
            }
            (single, batched) => panic!("{index}: {single:?} and {batched:?}"),
        }
    }
    assert_eq!(problems, 3, "no domain, too many descriptors, no unit");
    assert_eq!(counted(&together), counted(&alone));
}

#[test]
fn a_thousand_are_decided_and_one_more_is_refused_as_a_whole() {
    let (_service, limiter) = stage();
    let many = |count: usize| vec![user("cid"); count];
    let status = now(decide(&limiter, many(1_001))).unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("at most 1000"), "{status:?}");
    let answers = now(decide(&limiter, many(1_000))).unwrap();
    let passed = answers.iter().filter(|answer| code(answer) == Code::Ok);
    // Nothing was counted before.
    assert_eq!(passed.count(), 2);
    assert_eq!(code(&answers[1]), Code::Ok);
    assert!(now(decide(&limiter, Vec::new())).unwrap().is_empty());
}

#[test]
fn answers_carry_the_headers_that_the_server_was_told_to_send() {
    let (_service, limiter) = stage();
    let limiter = limiter.with_answers(AnswerOptions {
        headers: Some(HeaderNames::default()),
        dynamic_metadata: false,
    });
    let Answer::Response(response) = &now(decide(&limiter, vec![user("dan")])).unwrap()[0] else {
        panic!("an answer expected")
    };
    let names: Vec<_> = response
        .response_headers_to_add
        .iter()
        .map(|h| &*h.key)
        .collect();
    assert!(names.contains(&"RateLimit-Remaining"), "{names:?}");
}

/// Slots of the shaper are 100 ms apart: the last of four waits 300 ms, and that is how long all
/// take together. Whoever stands behind them in the message has the answer of its own turn.
#[tokio::test(start_paused = true)]
async fn those_that_wait_do_so_together_and_keep_their_places() {
    let (_service, limiter) = stage();
    let slow = || ask("edge", "slow", "x");
    let requests = vec![
        slow(),
        user("eva"),
        slow(),
        slow(),
        user("eva"),
        slow(),
        user("eva"),
    ];
    let mut decided = pin!(decide(&limiter, requests));
    let early = timeout(Duration::from_millis(295), &mut decided).await;
    assert!(early.is_err(), "the last slot is 300 ms away");
    let rest = timeout(Duration::from_millis(10), decided).await;
    let answers = rest.expect("they wait together").unwrap();
    let codes: Vec<_> = answers.iter().map(code).collect();
    let mut expected = [Code::Ok; 7];
    expected[6] = Code::OverLimit;
    assert_eq!(codes, expected);
}

#[tokio::test]
async fn the_stream_answers_message_by_message() {
    let (server, _service) = TestServer::with_limiter(RULES).await;
    let mut client = LimiterServiceClient::new(server.channel().await);
    let unary = client.should_rate_limit_batch(batch(vec![user("fay"), user("gil")]));
    let unary = answers(within(unary).await.unwrap().into_inner());
    assert_eq!(unary.iter().map(code).collect::<Vec<_>>(), [Code::Ok; 2]);

    let (say, messages) = mpsc::channel(4);
    let opened = client.should_rate_limit_stream(ReceiverStream::new(messages));
    let mut heard = within(opened).await.unwrap().into_inner();
    for (requests, expected) in [
        (
            vec![user("fay"), user("fay")],
            vec![Code::Ok, Code::OverLimit],
        ),
        (vec![], vec![]),
        (vec![user("gil")], vec![Code::Ok]),
    ] {
        say.send(batch(requests)).await.unwrap();
        let response = within(heard.next()).await.unwrap().unwrap();
        assert_eq!(
            answers(response).iter().map(code).collect::<Vec<_>>(),
            expected
        );
    }
    say.send(batch(vec![user("fay"); 1_001])).await.unwrap();
    say.send(batch(vec![user("fay")])).await.unwrap();
    let end = within(heard.next()).await.unwrap().unwrap_err();
    assert_eq!(end.code(), tonic::Code::InvalidArgument);
    assert!(within(heard.next()).await.is_none());
}

/// All metrics but the times of decisions: which of them are taken is chance.
fn counted(service: &Service) -> Vec<prometheus::proto::MetricFamily> {
    let mut families = service.engine.metrics();
    // How tables have grown depends on which keys fall together; each service hashes its own way.
    let varies = ["porteiro_decision_seconds", "porteiro_store_bytes"];
    families.retain(|family| !varies.contains(&family.name()));
    families
}
