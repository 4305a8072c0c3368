use super::*;
use crate::model::limit::{Anchor, Quota};
use crate::rules::{limit::Slice, testing};

const STALENESS: Span = Span::from_millis(100);
const KEY: CounterKey = CounterKey::from_bits(7);

fn limit(algorithm: Algorithm, size: Option<u64>) -> Limit {
    Limit {
        algorithm,
        quota: Quota::new(1_000, Span::from_secs(60), 1_000).unwrap(),
        slice: Some(Slice {
            size,
            max_staleness: STALENESS,
        }),
        ..testing::limit(Algorithm::TokenBucket, 1, Span::from_secs(1))
    }
}

fn window(size: Option<u64>) -> Limit {
    limit(Algorithm::FixedWindow(Anchor::Clock), size)
}

fn charges(limit: &Limit, cost: u64) -> Charges<'_> {
    Charges {
        list: smallvec::smallvec![Charge {
            key: KEY,
            limit,
            cost,
            refund: false,
            role: crate::store::Role::Enforced,
            shadow: false,
            descriptor: 0,
        }],
        ..Charges::default()
    }
}

fn outcome(allowed: bool, remaining: u64, reset: Span) -> Outcome {
    Outcome {
        allowed,
        used_before: 1_000 - remaining,
        remaining,
        reset,
        retry: Retry::After(Span::ZERO),
        delay: Span::ZERO,
        more: None,
    }
}

/// Steady zero is this by the store's clock.
const STORE: Timestamp = Timestamp::from_secs(1_000_000);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(5) + Span::from_millis(millis)
}

fn times(millis: u64) -> Times {
    Times {
        sent: at(millis),
        store: STORE + Span::from_millis(millis),
    }
}

struct Process {
    slices: Slices,
    tag: HashTag,
}

impl Process {
    fn new(replicas: u32) -> Self {
        Self {
            slices: Slices::new(NonZeroU32::new(replicas).unwrap()),
            tag: HashTag::new("porteiro", "edge"),
        }
    }

    /// A store that had so much left after one unit was taken, in a window that ends then.
    fn first_call(&self, limit: &Limit, remaining: u64, reset: Span) {
        let charges = charges(limit, 1);
        assert!(self.slices.plan(&charges, at(0)).is_none());
        let outcomes = [outcome(true, remaining, reset)];
        self.slices.saw(&self.tag, &charges, &outcomes, times(0));
    }

    /// Takes a block at this time if it is time to; the store grants it.
    fn block(&self, limit: &Limit, millis: u64, left: u64, reset: Span) -> (u64, Option<Taken>) {
        let charges = charges(limit, 1);
        let Some(plan) = self.slices.plan(&charges, at(millis)) else {
            return (0, None);
        };
        let block = plan.charges.list[1].cost;
        let outcomes = [
            outcome(true, left - 1, reset),
            outcome(true, left - 1 - block, reset),
        ];
        let (own, taken) = plan.landed(&self.tag, &outcomes, times(millis));
        assert_eq!(own.len(), 1);
        (block, taken.first().copied())
    }

    fn serve(&self, limit: &Limit, cost: u64, millis: u64) -> Option<Outcome> {
        let store = STORE + Span::from_millis(millis);
        let outcomes = self
            .slices
            .serve(&charges(limit, cost), at(millis), || store);
        outcomes.map(|outcomes| outcomes[0])
    }
}

const FAR: Span = Span::from_secs(30);

#[test]
fn a_block_is_spent_and_not_a_unit_more() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    let (block, taken) = process.block(&limit, 1, 999, FAR);
    assert_eq!(block, 9);
    assert!(taken.is_some());
    for left in (0..9).rev() {
        let outcome = process.serve(&limit, 1, 2).unwrap();
        assert_eq!(outcome.remaining, 989 + left);
        assert_eq!(outcome.used_before, 1_000 - 989 - left - 1);
        assert_eq!(outcome.reset, FAR.saturating_sub(Span::from_millis(1)));
    }
    assert_eq!(process.serve(&limit, 1, 2), None);
}

#[test]
fn a_larger_cost_than_is_left_goes_to_the_store() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    process.block(&limit, 1, 999, FAR);
    assert_eq!(process.serve(&limit, 10, 2), None);
    assert!(process.serve(&limit, 9, 2).is_some());
}

#[test]
fn a_block_is_never_spent_in_the_next_window() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    let end = Span::from_millis(50);
    process.first_call(&limit, 999, end);
    let (_, taken) = process.block(&limit, 10, 999, end);
    assert_eq!(taken.unwrap().hold, end.saturating_sub(TICK));
    assert!(process.serve(&limit, 1, 59).is_some());
    assert_eq!(process.serve(&limit, 1, 60), None);
    let rest = process.slices.take_back(&taken.unwrap()).unwrap();
    assert_eq!(rest.units, 8);
    assert_eq!(rest.end, Some(STORE + Span::from_millis(60)));
}

#[test]
fn a_block_is_held_no_longer_than_said() {
    let (process, limit) = (Process::new(1), limit(Algorithm::TokenBucket, Some(10)));
    process.first_call(&limit, 999, FAR);
    let (_, taken) = process.block(&limit, 0, 999, FAR);
    assert_eq!(taken.unwrap().hold, STALENESS);
    assert!(process.serve(&limit, 1, 99).is_some());
    assert_eq!(process.serve(&limit, 1, 100), None);
    let rest = process.slices.take_back(&taken.unwrap()).unwrap();
    assert_eq!((rest.units, rest.end), (8, None));
    assert!(process.slices.take_back(&taken.unwrap()).is_none());
    assert_eq!(process.serve(&limit, 1, 99), None);
}

#[test]
fn the_last_units_are_not_taken_ahead() {
    for (replicas, remaining, want) in [
        (1, 999, 99),
        (1, 101, 50),
        (1, 3, 1),
        (1, 2, 0),
        (5, 101, 10),
        (5, 10, 0),
        (5, 0, 0),
    ] {
        let (process, limit) = (Process::new(replicas), window(Some(100)));
        process.first_call(&limit, remaining, FAR);
        let block = process.block(&limit, 1, remaining, FAR).0;
        assert_eq!(block, want, "{replicas} {remaining}");
    }
}

#[test]
fn a_block_grows_to_what_is_used_while_it_may_be_held() {
    let (process, limit) = (Process::new(1), window(None));
    process.first_call(&limit, 999, FAR);
    // One call in each millisecond, of which a hundred are a block's life.
    let mut sizes = Vec::new();
    for millis in 1..200 {
        if process.serve(&limit, 1, millis).is_none() {
            sizes.push(process.block(&limit, millis, 999, FAR).0);
        }
    }
    assert_eq!(sizes, [7, 63, 99, 99]);
}

#[test]
fn a_rare_call_takes_no_block() {
    let (process, limit) = (Process::new(1), window(None));
    process.first_call(&limit, 999, FAR);
    for call in 1..5 {
        assert_eq!(process.block(&limit, 100 * call, 999, FAR).0, 0);
        let outcomes = [outcome(true, 900, FAR)];
        (process.slices).saw(
            &process.tag,
            &charges(&limit, 1),
            &outcomes,
            times(100 * call),
        );
    }
}

#[test]
fn one_at_a_time_takes_a_block() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    let charges = charges(&limit, 1);
    let plan = process.slices.plan(&charges, at(1));
    assert!(plan.is_some());
    assert!(process.slices.plan(&charges, at(1)).is_none());
    drop(plan);
    // Its answer did not come: the next one asks for itself alone.
    assert!(process.slices.plan(&charges, at(1)).is_none());
    let outcomes = [outcome(true, 998, FAR)];
    (process.slices).saw(&process.tag, &charges, &outcomes, times(2));
    assert!(process.slices.plan(&charges, at(3)).is_some());
}

#[test]
fn a_request_that_got_nothing_got_no_block() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    let mut together = charges(&limit, 1);
    together.terms.stacking = Stacking::AllOrNothing;
    let plan = process.slices.plan(&together, at(1)).unwrap();
    let outcomes = [outcome(false, 0, FAR), outcome(true, 0, FAR)];
    let (_, taken) = plan.landed(&process.tag, &outcomes, times(1));
    assert!(taken.is_empty());
    assert_eq!(process.serve(&limit, 1, 2), None);
}

#[test]
fn all_or_nothing_is_spent_from_all_blocks_or_none() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    process.block(&limit, 1, 999, FAR);
    let plain = Limit {
        slice: None,
        ..limit.clone()
    };
    let mut two = charges(&limit, 9);
    two.list.push(Charge {
        key: CounterKey::from_bits(8),
        descriptor: 1,
        ..two.list[0]
    });
    assert!(process.slices.serve(&two, at(2), || STORE).is_none());
    assert!(process.serve(&limit, 9, 2).is_some());
    // With a limit that is not sliced, none is asked.
    let mut mixed = two.clone();
    mixed.list[1].limit = &plain;
    assert!(process.slices.plan(&mixed, at(2)).is_none());
}

#[test]
fn looks_add_what_is_held_and_charges_do_not() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    process.block(&limit, 1, 999, FAR);
    let looked = |cost, wanted| {
        let mut outcomes = [outcome(false, 0, FAR)];
        let charges = charges(&limit, cost);
        (process.slices).add_held(&charges, wanted, &mut outcomes, at(2));
        (outcomes[0].allowed, outcomes[0].remaining)
    };
    assert_eq!(looked(0, Wanted::Decision), (true, 9));
    assert_eq!(looked(9, Wanted::Look), (true, 9));
    assert_eq!(looked(10, Wanted::Look), (false, 9));
    assert_eq!(looked(1, Wanted::Decision), (false, 0));
}

#[test]
fn a_reset_or_a_changed_limit_voids_the_block() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    process.block(&limit, 1, 999, FAR);
    let changed = Limit {
        quota: Quota::window(5, Span::from_secs(60)),
        ..limit.clone()
    };
    assert_eq!(process.serve(&changed, 1, 2), None);
    process.slices.forget(KEY);
    assert_eq!(process.serve(&limit, 1, 2), None);
    assert!(process.slices.close().is_empty());
}

#[test]
fn closed_it_gives_everything_back_and_takes_nothing() {
    let (process, limit) = (Process::new(1), window(Some(10)));
    process.first_call(&limit, 999, FAR);
    process.block(&limit, 1, 999, FAR);
    let rests = process.slices.close();
    assert_eq!(rests.iter().map(|rest| rest.units).sum::<u64>(), 9);
    assert_eq!(process.serve(&limit, 1, 2), None);
    assert!(process.slices.plan(&charges(&limit, 1), at(3)).is_none());
}
