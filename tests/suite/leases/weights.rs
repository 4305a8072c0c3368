//! Requests that do not say how many permits they need.

use porteiro::{
    model::time::Span,
    proto::porteiro::v1::{
        AcquireRequest, Criticality, Item, LeaseEnd, acquire_response::Decision, lease_end::Outcome,
    },
};

use super::desk::{self, Desk, descriptor};

const RULES: &str = "
domain: d
descriptors:
- key: learns
  concurrency: {limit: 100, learn_weights: {max: 8}}
- key: narrow
  concurrency: {limit: 5, learn_weights: {max: 8}}
- key: plain
  concurrency: {limit: 100}
";

/// How the work ended.
#[derive(Clone, Copy)]
struct Work {
    millis: u64,
    actual: Option<u64>,
    outcome: Outcome,
}

const fn took(millis: u64) -> Work {
    Work {
        millis,
        actual: None,
        outcome: Outcome::Success,
    }
}

impl Desk {
    /// Permits that a piece of work of this key gets; it takes so long and is given back.
    fn work(&self, key: &str, value: &str, permits: Option<u64>, work: Work) -> u64 {
        let answer = self.acquire(request(key, value, permits));
        assert_eq!(answer.decision(), Decision::Granted);
        self.service.clock.advance(Span::from_millis(work.millis));
        let end = LeaseEnd {
            lease_id: answer.lease_id,
            outcome: work.outcome.into(),
            actual_permits: work.actual,
            ..LeaseEnd::default()
        };
        self.release(end);
        answer.items[0].granted
    }

    /// Permits that a request which does not say gets now.
    fn weight(&self, key: &str, value: &str) -> u64 {
        let ignored = Work {
            outcome: Outcome::Ignored,
            ..took(0)
        };
        self.work(key, value, None, ignored)
    }

    /// Three keys whose work takes 100 ms.
    fn with_usual_work(key: &str) -> Self {
        let desk = Self::over(RULES);
        for value in ["a", "b", "c"] {
            assert_eq!(desk.work(key, value, None, took(100)), 1);
        }
        desk
    }
}

fn request(key: &str, value: &str, permits: Option<u64>) -> AcquireRequest {
    desk::request(vec![Item {
        descriptor: Some(descriptor(key, value)),
        permits,
        ..Item::default()
    }])
}

#[test]
fn work_that_takes_longer_than_the_median_weighs_more() {
    let desk = Desk::with_usual_work("learns");
    assert_eq!(desk.work("learns", "slow", None, took(300)), 1);
    assert_eq!(desk.weight("learns", "slow"), 3);
    assert_eq!(desk.weight("learns", "a"), 1);
    // Nobody knows a new one.
    assert_eq!(desk.weight("learns", "new"), 1);
}

#[test]
fn what_the_holder_says_it_needed_counts() {
    let desk = Desk::with_usual_work("learns");
    let wide = Work {
        actual: Some(4),
        ..took(100)
    };
    desk.work("learns", "wide", None, wide);
    assert_eq!(desk.weight("learns", "wide"), 4);
}

#[test]
fn a_learned_weight_does_not_feed_itself() {
    let desk = Desk::with_usual_work("learns");
    for _ in 0..50 {
        desk.work("learns", "slow", None, took(200));
    }
    assert_eq!(desk.weight("learns", "slow"), 2);
}

#[test]
fn permits_that_are_said_are_taken_as_they_are() {
    let desk = Desk::with_usual_work("learns");
    desk.work("learns", "slow", None, took(500));
    assert_eq!(desk.weight("learns", "slow"), 5);
    for said in [1, 2, 20] {
        assert_eq!(desk.work("learns", "slow", Some(said), took(100)), said);
    }
}

#[test]
fn a_weight_is_never_below_one() {
    let desk = Desk::with_usual_work("learns");
    desk.work("learns", "quick", None, took(1));
    let none = Work {
        actual: Some(0),
        ..took(1)
    };
    desk.work("learns", "quick", None, none);
    assert_eq!(desk.weight("learns", "quick"), 1);
}

#[test]
fn a_burst_of_lies_stays_within_the_bound() {
    let desk = Desk::with_usual_work("learns");
    let lie = Work {
        actual: Some(u64::MAX),
        ..took(60)
    };
    for _ in 0..200 {
        desk.work("learns", "liar", None, lie);
    }
    assert_eq!(desk.weight("learns", "liar"), 8);
    assert_eq!(desk.weight("learns", "a"), 1);
    for _ in 0..20 {
        desk.work("learns", "liar", None, took(100));
    }
    assert_eq!(desk.weight("learns", "liar"), 1);
}

#[test]
fn a_weight_is_never_more_than_what_the_limit_lets_through() {
    let desk = Desk::with_usual_work("narrow");
    desk.work("narrow", "slow", None, took(800));
    assert_eq!(desk.weight("narrow", "slow"), 5);
    // Of five permits this class may fill four.
    let sheddable = AcquireRequest {
        criticality: Criticality::Sheddable.into(),
        ..request("narrow", "slow", None)
    };
    let answer = desk.acquire(sheddable);
    assert_eq!(answer.decision(), Decision::Granted);
    assert_eq!(answer.items[0].granted, 4);
}

#[test]
fn a_repeated_request_is_the_same_one_whatever_was_learned_meanwhile() {
    let desk = Desk::with_usual_work("learns");
    let named = || AcquireRequest {
        request_id: b"one".to_vec(),
        ..request("learns", "slow", None)
    };
    assert_eq!(desk.acquire(named()).decision(), Decision::Granted);
    desk.work("learns", "slow", None, took(300));
    assert_eq!(desk.weight("learns", "slow"), 3);
    assert_eq!(desk.acquire(named()).decision(), Decision::Replayed);
}

#[test]
fn only_work_that_ended_well_teaches_and_only_where_that_is_wanted() {
    let desk = Desk::with_usual_work("learns");
    for outcome in [Outcome::Dropped, Outcome::Ignored] {
        let work = Work {
            outcome,
            ..took(900)
        };
        desk.work("learns", "slow", None, work);
    }
    assert_eq!(desk.weight("learns", "slow"), 1);
    let desk = Desk::with_usual_work("plain");
    desk.work("plain", "slow", None, took(900));
    assert_eq!(desk.weight("plain", "slow"), 1);
}
