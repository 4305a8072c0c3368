//! `--restrict`, on every way in: the program as a process, clients with and without the token.

use std::fs;

use porteiro::proto::{
    envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    envoy::service::ratelimit::v3::RateLimitRequest,
    porteiro::v1::{
        ResetRequest, ShouldRateLimitBatchRequest, ShouldRateLimitBatchResponse,
        limiter_service_client::LimiterServiceClient,
        should_rate_limit_batch_response::answer::Answer,
    },
};
use tonic::{Code, Request, transport::Channel};

use crate::{
    process::Serving,
    serving::{ask, http, within},
};

const TOKEN: &str = "a-token-of-the-tests";
const RULES: &str =
    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: 9}\n";

fn batch(requests: &[RateLimitRequest]) -> ShouldRateLimitBatchRequest {
    ShouldRateLimitBatchRequest {
        requests: requests.to_vec(),
    }
}

fn with_token<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let token = format!("Bearer {TOKEN}").parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    request
}

/// Codes of the answers of a batch.
fn codes(answer: ShouldRateLimitBatchResponse) -> Vec<Code> {
    let answers = answer.answers.into_iter();
    answers
        .map(|answer| match answer.answer.unwrap() {
            Answer::Response(_) => Code::Ok,
            Answer::Problem(problem) => Code::from(problem.code),
        })
        .collect()
}

/// Codes of the answers to the first message on a stream.
async fn streamed(
    client: &mut LimiterServiceClient<Channel>,
    request: Request<tokio_stream::Iter<std::array::IntoIter<ShouldRateLimitBatchRequest, 1>>>,
) -> Result<Vec<Code>, Code> {
    let answers = within(client.should_rate_limit_stream(request)).await;
    let mut answers = answers.map_err(|status| status.code())?.into_inner();
    let answer = within(answers.message()).await;
    let answer = answer.map_err(|status| status.code())?;
    Ok(codes(answer.unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_resets_and_overrides_are_for_those_with_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("rules.yaml"), RULES).unwrap();
    fs::write(path("token"), TOKEN).unwrap();
    let mut porteiro = Serving::listening(
        &[
            "--config",
            &path("rules.yaml"),
            "--restrict",
            "refunds,resets,overrides",
            "--privileged-token-file",
            &path("token"),
        ],
        &[],
    );
    porteiro.line_with("rules loaded");
    let channel = Channel::from_shared(format!("http://{}", porteiro.grpc)).unwrap();
    let mut client = LimiterServiceClient::new(within(channel.connect()).await.unwrap());

    let plain = ask("d", "k", "v");
    let mut refund = plain.clone();
    refund.descriptors[0].is_negative_hits = true;
    let mut change = plain.clone();
    change.descriptors[0].limit = Some(RateLimitOverride {
        requests_per_unit: 1,
        unit: 4,
        ..RateLimitOverride::default()
    });

    // A message with one of them is refused as a whole, and nothing in it is counted.
    let denied = Code::PermissionDenied;
    for special in [&refund, &change] {
        let message = batch(&[plain.clone(), special.clone(), plain.clone()]);
        let status = within(client.should_rate_limit_batch(message.clone())).await;
        assert_eq!(status.unwrap_err().code(), denied);
        let stream = Request::new(tokio_stream::iter([message.clone()]));
        assert_eq!(streamed(&mut client, stream).await, Err(denied));

        let answer = within(client.should_rate_limit_batch(with_token(message.clone()))).await;
        assert_eq!(codes(answer.unwrap().into_inner()), [Code::Ok; 3]);
        let stream = with_token(tokio_stream::iter([message]));
        assert_eq!(streamed(&mut client, stream).await, Ok(vec![Code::Ok; 3]));
    }

    // Twice two hits, of which one was given back, and twice two: the rest of nine is three.
    let reset = ResetRequest {
        domain: "d".to_owned(),
        descriptors: plain.descriptors.clone(),
        revoke_leases: false,
    };
    let status = within(client.reset(reset.clone())).await.unwrap_err();
    assert_eq!(status.code(), denied, "{status:?}");
    assert!(status.message().contains("resets"), "{status:?}");
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let at = porteiro.http.parse().unwrap();
    for want in [200, 200, 200, 429] {
        assert_eq!(http(at, "POST", "/json", body).await.0, want);
    }
    let wrong = {
        let mut request = Request::new(reset.clone());
        let token = format!("Bearer {TOKEN}x").parse().unwrap();
        request.metadata_mut().insert("authorization", token);
        request
    };
    assert_eq!(
        within(client.reset(wrong)).await.unwrap_err().code(),
        denied
    );
    let answer = within(client.reset(with_token(reset))).await.unwrap();
    assert_eq!(answer.into_inner().counters, 1);
    assert_eq!(http(at, "POST", "/json", body).await.0, 200);

    porteiro.signal("-TERM");
    let (code, log) = porteiro.end();
    assert_eq!(code, Some(0));
    assert!(!log.contains(TOKEN), "{log}");
}
