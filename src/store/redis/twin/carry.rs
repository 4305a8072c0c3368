//! A changed limit: the script carries over what was used as the Rust function does.
//!
//! Here a microsecond stands for the nanosecond of the Rust functions, so that both round at the
//! same place and the states themselves can be compared.

use mlua::{Lua, Table};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::fake;
use crate::{
    algorithm,
    model::{
        limit::{Algorithm, Anchor, Quota, State},
        time::{Span, Timestamp},
    },
    store::redis::{ask::Tag, number, script},
};

/// Number of random changes for each algorithm.
const CHANGES: usize = 2_000;

struct Functions(Lua);

impl Functions {
    fn new() -> Self {
        let lua = Lua::new();
        lua.globals().set("struct", fake::structs(&lua)).unwrap();
        // The algorithms without what calls them.
        let (functions, _) = script::DECIDE
            .split_once("-- Decides the requests")
            .unwrap();
        let exported = "\nreturn { window = settle_window, sliding = settle_sliding, \
                        bucket = settle_bucket, muldiv = muldiv }";
        let table: Table = lua.load(format!("{functions}{exported}")).eval().unwrap();
        lua.globals().set("functions", table).unwrap();
        Self(lua)
    }

    fn get(&self, name: &str) -> mlua::Function {
        let functions: Table = self.0.globals().get("functions").unwrap();
        functions.get(name).unwrap()
    }

    /// The state under the new limit.
    fn carry(
        &self,
        (old, old_quota): (&Algorithm, Quota),
        (new, new_quota): (&Algorithm, Quota),
        state: &State,
        now: Timestamp,
    ) -> State {
        let table = |fields: &[(&str, u64)]| {
            let table = self.0.create_table().unwrap();
            for (name, value) in fields {
                table.set(*name, number::double(*value)).unwrap();
            }
            table
        };
        let ask = table(&[
            ("tag", Tag::of(new) as u64),
            ("units", new_quota.units()),
            ("drain", new_quota.units().max(1)),
            ("period", new_quota.period().as_nanos()),
        ]);
        let stored = table(&[
            ("tag", Tag::of(old) as u64),
            ("u", state.until.as_nanos()),
            ("a", state.a),
            ("b", state.b),
            ("p", old_quota.period().as_nanos()),
            ("n", old_quota.units().max(1)),
        ]);
        let name = match Tag::of(new) as u8 {
            1..=4 => "window",
            5 => "sliding",
            _ => "bucket",
        };
        let settle = self.get(name);
        let clock = number::double(now.as_nanos());
        settle.call::<()>((ask, &stored, clock)).unwrap();
        let word = |name: &str| number::whole(stored.get(name).unwrap());
        State {
            until: Timestamp::from_nanos(word("u")),
            a: word("a"),
            b: word("b"),
        }
    }
}

fn quota(random: &mut StdRng) -> Quota {
    let units: u64 = if random.random_bool(0.3) {
        random.random_range(1..1 << 40)
    } else {
        random.random_range(1..50)
    };
    let period = match random.random_range(0..3) {
        0 => random.random_range(1..100),
        1 => random.random_range(1..100_000_000),
        _ => random.random_range(1..400) * 86_400_000_000,
    };
    let burst = random.random_range(1..=units.saturating_mul(2));
    Quota::new(units, Span::from_nanos(period), burst).unwrap()
}

fn changes(algorithms: &[Algorithm]) {
    let functions = Functions::new();
    let mut random = StdRng::seed_from_u64(7);
    for change in 0..CHANGES {
        let pick = |random: &mut StdRng| &algorithms[random.random_range(0..algorithms.len())];
        let (old, new) = (pick(&mut random), pick(&mut random));
        let (old_quota, new_quota) = (quota(&mut random), quota(&mut random));
        let mut now = Timestamp::from_nanos(1_774_745_999_000_000);
        let mut state = State::default();
        let period = old_quota.period().as_nanos();
        for _ in 0..random.random_range(1..6) {
            let most = old_quota.units().max(old_quota.burst());
            let cost = random.random_range(1..=most);
            let _ = algorithm::take(old, old_quota, &mut state, now, cost, false);
            now = now + Span::from_nanos(random.random_range(0..=period));
        }
        let theirs = functions.carry((old, old_quota), (new, new_quota), &state, now);
        let mut ours = algorithm::carry((old, old_quota), (new, new_quota), &state, now);
        algorithm::settle(new, new_quota, &mut ours, now);
        if now.until(ours.until).as_nanos() >= number::LARGEST {
            // Much of a large limit under a small one: longer than the scripts can tell.
            continue;
        }
        let told = (change, old, old_quota, new, new_quota, state, now);
        assert_eq!(theirs, ours, "{told:?}");
    }
}

#[test]
fn a_changed_window_keeps_its_count() {
    changes(&[
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::LastHit),
    ]);
}

#[test]
fn a_changed_sliding_window_keeps_its_estimate() {
    changes(&[Algorithm::SlidingWindow]);
}

#[test]
fn a_changed_bucket_keeps_what_is_missing() {
    changes(&[Algorithm::TokenBucket]);
    changes(&[Algorithm::LeakyQueue]);
}

#[test]
fn products_are_divided_without_losing_a_digit() {
    let functions = Functions::new();
    let muldiv = functions.get("muldiv");
    let mut random = StdRng::seed_from_u64(8);
    let mut number = |most: u32| random.random_range(1..=1_u64 << most);
    let mut large = 0;
    for _ in 0..20_000 {
        let (a, b, c) = (number(51), number(51), number(51));
        let product = u128::from(a) * u128::from(b);
        let quotient = product / u128::from(c);
        if quotient >= 1 << 53 {
            continue;
        }
        large += usize::from(product >= 1 << 53);
        let [a, b, c] = [a, b, c].map(number::double);
        let (theirs, rest): (f64, f64) = muldiv.call((a, b, c)).unwrap();
        let told = (u128::from(number::whole(theirs)), number::whole(rest));
        let rest = u64::try_from(product % u128::from(number::whole(c))).unwrap();
        assert_eq!(told, (quotient, rest), "{a} × {b} ÷ {c}");
    }
    assert!(large > 1_000);
}
