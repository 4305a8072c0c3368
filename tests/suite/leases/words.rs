//! What each field of the messages of leases does, and what the answers say.

use porteiro::{
    model::time::Span,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, Criticality, Holder, Item, LeaseEnd, LeaseRenewal,
        PeekRequest, ReleaseRequest, ReleaseResult, RenewRequest, ResetRequest,
        acquire_request::Partial, acquire_response::Decision,
        limiter_service_server::LimiterService, release_result::Status as Released,
        renew_result::Status as Renewed,
    },
};
use prost_types::Duration;
use tonic::{Code, Request};

use super::desk::{self, Desk, descriptor};
use crate::support;

const RULES: &str = "
domain: d
descriptors:
- {key: few, concurrency: {limit: 4, lease_ttl: 10s}}
- {key: many, concurrency: {limit: 200}}
- {key: percent, concurrency: {limit: 100}}
- {key: own, concurrency: {limit: 1, prior_hold: 4s, hint_jitter: 0, hint_booking: false}}
- {key: pool, scope: shared, concurrency: {limit: 1}}
- {key: rate, limits: [{rate: 5/minute}]}
";

const fn duration(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn item(key: &str, permits: u64) -> Item {
    Item {
        descriptor: Some(descriptor(key, "x")),
        permits: Some(permits),
        ..Item::default()
    }
}

fn ask(key: &str, permits: u64) -> AcquireRequest {
    desk::request(vec![item(key, permits)])
}

impl Desk {
    fn decision(&self, request: AcquireRequest) -> Decision {
        self.acquire(request).decision()
    }

    fn granted(&self, request: AcquireRequest) -> AcquireResponse {
        let answer = self.acquire(request);
        assert_eq!(answer.decision(), Decision::Granted);
        answer
    }

    fn end_all(&self, leases: Vec<LeaseEnd>) -> Vec<ReleaseResult> {
        let request = ReleaseRequest {
            leases,
            holder: None,
        };
        let answer = support::now(self.limiter.release(Request::new(request)));
        answer.unwrap().into_inner().results
    }
}

fn end(lease_id: &str) -> LeaseEnd {
    LeaseEnd {
        lease_id: lease_id.into(),
        ..LeaseEnd::default()
    }
}

#[test]
fn a_dry_run_takes_nothing() {
    let desk = Desk::over(RULES);
    let dry = AcquireRequest {
        dry_run: true,
        ..ask("few", 4)
    };
    for _ in 0..2 {
        let answer = desk.acquire(dry.clone());
        assert_eq!(answer.decision(), Decision::WouldGrant);
        assert_eq!(answer.lease_id, "");
    }
    desk.granted(ask("few", 4));
    assert_eq!(desk.decision(dry), Decision::Refused);
}

#[test]
fn a_shared_limit_refuses_with_503_and_ones_own_with_429() {
    let desk = Desk::over(RULES);
    for (key, status) in [("own", 429), ("pool", 503)] {
        assert_eq!(desk.granted(ask(key, 1)).http_status, 0);
        assert_eq!(desk.acquire(ask(key, 1)).http_status, status, "{key}");
    }
}

#[test]
fn fewer_permits_will_do_and_never_more_than_asked_for() {
    let desk = Desk::over(RULES);
    let partial = |permits, least| {
        let mut request = ask("few", permits);
        request.items[0].min_permits = Some(least);
        request.set_partial(Partial::Permits);
        request
    };
    let first = desk.granted(partial(2, 9));
    assert_eq!(first.items[0].granted, 2);
    assert_eq!(desk.decision(partial(4, 3)), Decision::Refused);
    assert_eq!(desk.granted(partial(4, 1)).items[0].granted, 2);
}

#[test]
fn names_of_holders_are_bounded() {
    let desk = Desk::over(RULES);
    let acquire = |id: usize, instance: usize| {
        let request = AcquireRequest {
            holder: Some(Holder {
                id: "h".repeat(id),
                instance: "i".repeat(instance),
            }),
            ..ask("many", 1)
        };
        support::now(desk.limiter.acquire(Request::new(request)))
    };
    assert!(acquire(256, 256).is_ok());
    for (id, instance) in [(257, 1), (1, 257)] {
        let status = acquire(id, instance).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{id} {instance}");
    }
}

#[test]
fn the_holder_knows_best_how_long_it_held() {
    let desk = Desk::over(RULES);
    let (told, seen) = (desk.granted(ask("few", 1)), desk.granted(ask("few", 1)));
    desk.pass(Span::from_secs(5));
    let told = LeaseEnd {
        held: Some(duration(2)),
        ..end(&told.lease_id)
    };
    let results = desk.end_all(vec![told, end(&seen.lease_id)]);
    assert_eq!(results[0].held, Some(duration(2)));
    assert_eq!(results[1].held, Some(duration(5)));
}

#[test]
fn each_lease_has_the_status_at_its_place() {
    let desk = Desk::over(RULES);
    let ids = [0, 1].map(|_| desk.granted(ask("few", 1)).lease_id);
    let results = desk.end_all(vec![
        end("nonsense"),
        end(&ids[0]),
        end(&ids[0]),
        end(""),
        end(&ids[1]),
    ]);
    let statuses: Vec<Released> = results.iter().map(ReleaseResult::status).collect();
    assert_eq!(
        statuses,
        [
            Released::Unknown,
            Released::Released,
            Released::AlreadyReleased,
            Released::Unknown,
            Released::Released,
        ]
    );
    assert_eq!(results[4].lease_id, ids[1]);
}

#[test]
fn a_renewal_lasts_as_long_as_it_says_or_as_the_rule_does() {
    let desk = Desk::over(RULES);
    let id = desk.granted(ask("few", 1)).lease_id;
    desk.pass(Span::from_secs(4));
    let renew = |lease_id: &str, ttl| LeaseRenewal {
        lease_id: lease_id.into(),
        ttl,
    };
    let request = RenewRequest {
        leases: vec![
            renew(&id, None),
            renew("nonsense", Some(duration(20))),
            renew(&id, Some(duration(20))),
            // Never shorter than it was.
            renew(&id, Some(duration(3))),
        ],
        holder: None,
    };
    let answer = support::now(desk.limiter.renew(Request::new(request)));
    let results = answer.unwrap().into_inner().results;
    let told: Vec<_> = results
        .iter()
        .map(|result| (result.status(), result.expires_in))
        .collect();
    assert_eq!(
        told,
        [
            (Renewed::Renewed, Some(duration(10))),
            (Renewed::Unknown, None),
            (Renewed::Renewed, Some(duration(20))),
            (Renewed::Renewed, Some(duration(20))),
        ]
    );
    desk.pass(Span::from_secs(20));
    assert_eq!(desk.end_all(vec![end(&id)])[0].status(), Released::Late);
}

#[test]
fn a_hint_begins_with_the_hold_that_the_caller_expects() {
    for (expected, hint) in [(None, 4), (Some(duration(7)), 7)] {
        let desk = Desk::over(RULES);
        let request = || AcquireRequest {
            expected_hold: expected,
            ..ask("own", 1)
        };
        desk.granted(request());
        assert_eq!(desk.acquire(request()).retry_after, Some(duration(hint)));
    }
}

#[test]
fn within_a_class_the_place_decides_who_is_shed() {
    let desk = Desk::over(RULES);
    // Of this class the last may fill 80.08 %, the middle one 85 %.
    desk.granted(ask("percent", 82));
    let at = |fairness| AcquireRequest {
        criticality: Criticality::SheddablePlus.into(),
        fairness,
        ..ask("percent", 1)
    };
    assert_eq!(desk.decision(at(127)), Decision::Refused);
    assert_eq!(desk.decision(at(1_000)), Decision::Refused);
    assert_eq!(desk.decision(at(64)), Decision::Granted);
}

#[test]
fn a_reset_forgets_what_a_descriptor_counts_whatever_else_it_says() {
    let desk = Desk::over(RULES);
    desk.granted(AcquireRequest {
        items: vec![Item {
            hits: Some(3),
            ..item("rate", 1)
        }],
        ..ask("rate", 1)
    });
    let mut refund = descriptor("rate", "x");
    refund.is_negative_hits = true;
    let peek = || {
        let request = PeekRequest {
            domain: "d".into(),
            descriptors: vec![refund.clone()],
            ..PeekRequest::default()
        };
        let peeked = support::now(desk.limiter.peek(Request::new(request)));
        let limit = peeked.unwrap().into_inner().descriptors[0].limits[0].clone();
        (limit.used, limit.remaining)
    };
    assert_eq!(peek(), (3, 2));
    let reset = ResetRequest {
        domain: "d".into(),
        descriptors: vec![refund.clone()],
        ..ResetRequest::default()
    };
    let reset = support::now(desk.limiter.reset(Request::new(reset)));
    assert_eq!(reset.unwrap().into_inner().counters, 1);
    assert_eq!(peek(), (0, 5));
}

#[test]
fn a_look_lists_a_hundred_leases_at_the_most() {
    let desk = Desk::over(RULES);
    for _ in 0..101 {
        desk.granted(ask("many", 1));
    }
    for (wanted, listed) in [(0, 0), (7, 7), (1_000, 100), (u32::MAX, 100)] {
        let request = PeekRequest {
            domain: "d".into(),
            descriptors: vec![descriptor("many", "x")],
            leases: wanted,
            ..PeekRequest::default()
        };
        let peeked = support::now(desk.limiter.peek(Request::new(request)));
        let peeked = peeked.unwrap().into_inner();
        assert_eq!(peeked.descriptors[0].limits[0].leases.len(), listed);
    }
}
