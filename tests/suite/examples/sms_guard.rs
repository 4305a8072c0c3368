//! The last gate before a provider that costs money: messages, not requests; rate, day and calls in
//! one decision.

use porteiro::{
    model::time::Span,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, Cause, ReleaseRequest, acquire_response::Decision,
        limiter_service_server::LimiterService,
    },
};
use serde_json::json;

use super::{Example, item};
use crate::{
    contract::{body, header},
    support::{message, now},
};

fn start() -> Example {
    Example::start("sms-guard", "sms")
}

impl Example {
    /// As every code path asks: so many messages for a number, and one call.
    fn send(&self, number: &str, messages: u64) -> AcquireResponse {
        let entry = |key: &str, value: &str| json!({"entries": [{"key": key, "value": value}]});
        let hits = messages.to_string();
        let items = json!([
            {"descriptor": entry("provider", "acme"), "hits": hits},
            {"descriptor": entry("number", number), "hits": hits},
            {"descriptor": entry("calls", "acme")},
        ]);
        let request = json!({"domain": "sms", "items": items, "refuse_unknown": true});
        let request: AcquireRequest = message("porteiro.v1.AcquireRequest", &request);
        let answer = now(self.limiter.acquire(tonic::Request::new(request)));
        answer.unwrap().into_inner()
    }

    fn finish(&self, sent: &AcquireResponse) {
        let request = json!({"leases": [{"lease_id": sent.lease_id, "outcome": "SUCCESS"}]});
        let request: ReleaseRequest = message("porteiro.v1.ReleaseRequest", &request);
        now(self.limiter.release(tonic::Request::new(request))).unwrap();
    }

    /// Sends, waiting as long as it is told; how many messages went out within this time.
    fn send_all_it_can(&self, span: Span, messages: u64) -> u64 {
        let end = self.service.clock.now().wall + span;
        let mut sent = 0;
        for n in 0_u64.. {
            let answer = self.send(&format!("+35191{n}"), messages);
            match answer.decision() {
                Decision::Granted => {
                    sent += messages;
                    self.finish(&answer);
                }
                _ => self.wait(wait(&answer)),
            }
            if self.service.clock.now().wall >= end {
                break;
            }
        }
        sent
    }
}

/// How long it is told to wait.
fn wait(answer: &AcquireResponse) -> Span {
    let wait = answer.retry_after.unwrap();
    let nanos = i128::from(wait.seconds) * 1_000_000_000 + i128::from(wait.nanos);
    Span::from_nanos(u64::try_from(nanos).unwrap())
}

fn refused(answer: &AcquireResponse) -> (Decision, Cause, u32) {
    (answer.decision(), answer.cause(), answer.http_status)
}

#[test]
fn messages_are_counted_and_not_requests() {
    let sms = start();
    // 20 at once: two of seven and one of six.
    for messages in [7, 7, 6] {
        let sent = sms.send(&format!("+{messages}1"), 1);
        sms.finish(&sent);
        let sent = sms.send(&format!("+{messages}2"), messages - 1);
        assert!(
            sent.decision() == Decision::Granted || messages > 6,
            "{sent:?}"
        );
        sms.finish(&sent);
    }
}

#[test]
fn rate_day_and_calls_are_one_decision() {
    let sms = start();
    let open: Vec<AcquireResponse> = (0..4).map(|n| sms.send(&format!("+{n}"), 2)).collect();
    assert!(open.iter().all(|sent| sent.decision() == Decision::Granted));
    // The fifth call: nothing of it is taken from rate, day or number.
    for _ in 0..50 {
        let answer = sms.send("+9", 3);
        assert_eq!(
            refused(&answer),
            (Decision::Refused, Cause::ConcurrencyLimit, 503)
        );
    }
    let left = sms.peek(&[item(&[("provider", "acme")]), item(&[("number", "+9")])]);
    let used: Vec<u64> = left
        .descriptors
        .iter()
        .flat_map(|d| &d.limits)
        .map(|l| l.used)
        .collect();
    assert_eq!(used, [8, 8, 0, 0]);
    sms.finish(&open[0]);
    let sent = sms.send("+9", 3);
    assert_eq!(sent.decision(), Decision::Granted);
    // Now the rate: 11 of the 20 are used, and a permit is free.
    sms.finish(&sent);
    assert_eq!(sms.send("+8", 5).decision(), Decision::Granted);
    sms.finish(&open[1]);
    let answer = sms.send("+7", 5);
    assert_eq!(refused(&answer), (Decision::Refused, Cause::RateLimit, 503));
    assert_eq!(
        wait(&answer),
        Span::from_millis(100),
        "one message is missing"
    );
    sms.wait(Span::from_millis(100));
    assert_eq!(sms.send("+7", 5).decision(), Decision::Granted);
}

#[test]
fn more_than_fits_is_never_sent() {
    let sms = start();
    let answer = sms.send("+1", 6);
    assert_eq!(
        answer.decision(),
        Decision::Never,
        "a number takes five an hour"
    );
    assert_eq!(answer.retry_after, None);
}

#[test]
fn a_number_is_not_flooded_by_all_paths_together() {
    let sms = start();
    for _ in 0..5 {
        let sent = sms.send("+1", 1);
        assert_eq!(sent.decision(), Decision::Granted);
        sms.finish(&sent);
    }
    let answer = sms.send("+1", 1);
    // The caller's own number: 429, in an hour.
    assert_eq!(refused(&answer), (Decision::Refused, Cause::RateLimit, 429));
    assert_eq!(wait(&answer), Span::from_secs(3_600));
}

#[test]
fn a_day_has_one_budget_whatever_happens_at_night() {
    let sms = start();
    // 22:20 in Lisbon, and a loop somewhere that sends all night, from many numbers.
    assert_eq!(
        sms.send_all_it_can(Span::from_secs(6_000), 5),
        5_000,
        "the rest of the evening"
    );
    assert_eq!(
        sms.send_all_it_can(Span::from_secs(86_400), 5),
        5_000,
        "from midnight to midnight"
    );
    assert_eq!(
        sms.send_all_it_can(Span::from_secs(7 * 86_400), 5),
        35_000,
        "a week"
    );
}

#[test]
fn those_who_ask_as_envoy_does_share_it() {
    let sms = start();
    for n in 0..4 {
        assert_eq!(sms.send(&format!("+{n}"), 5).decision(), Decision::Granted);
    }
    let refused = sms.ask(&[item(&[("provider", "acme")]).cost(2)]);
    assert_eq!(refused.overall_code, 2);
    assert_eq!(
        header(&refused, "X-RateLimit-Name"),
        Some("messages-a-second")
    );
    let policy = header(&refused, "RateLimit-Policy").unwrap();
    assert!(
        policy.contains("q=5000;qu=\"messages\";w=86400"),
        "{policy}"
    );
    let problem = body(&refused);
    let kind = problem["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
    assert_eq!(problem["retry_after"], 0.2);
}
