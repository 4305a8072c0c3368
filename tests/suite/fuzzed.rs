//! The bodies of `fuzz/`, with bytes of a seeded generator: pieces of right input, torn and joined.
//! `cargo fuzz` finds more and begins with the same input; this keeps the bodies alive on the
//! stable compiler.

#[path = "../../fuzz/bodies.rs"]
mod bodies;
mod seeds;

use proptest::{collection::vec, prelude::*, sample::Index};

/// Right input, cut and put together, with noise in between.
fn torn(pieces: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let piece = (any::<Index>(), any::<Index>(), any::<Index>()).prop_map(move |(which, a, b)| {
        let piece = which.get(&pieces);
        let (a, b) = (a.index(piece.len() + 1), b.index(piece.len() + 1));
        piece[a.min(b)..a.max(b)].to_vec()
    });
    let noise = vec(any::<u8>(), 0..8);
    vec(prop_oneof![4 => piece, 1 => noise], 0..8).prop_map(|parts| parts.concat())
}

/// A state with some bytes changed: cut ones are refused before anything else is looked at.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<Index>(), vec(any::<u8>(), 1..9));
    (any::<Index>(), vec(change, 1..4)).prop_map(|(which, changes)| {
        let mut state = which.get(&seeds::states()).clone();
        for (place, bytes) in changes {
            let place = place.index(state.len());
            for (old, new) in state[place..].iter_mut().zip(bytes) {
                *old = new;
            }
        }
        state
    })
}

proptest! {
    #[test]
    fn the_decoder_of_requests(data in torn(seeds::messages())) {
        bodies::rls(&data);
    }

    #[test]
    fn rule_files(data in torn(seeds::rule_files())) {
        bodies::yaml(&data);
    }

    #[test]
    fn bodies_of_json(data in torn(seeds::json())) {
        bodies::json(&data);
    }

    #[test]
    fn structured_fields(data in torn(seeds::fields())) {
        bodies::fields(&data);
    }

    #[test]
    fn state_files(data in prop_oneof![torn(seeds::states()), changed()]) {
        bodies::state::state(&data);
    }
}

/// A target of `fuzz/`: its name, its body, right input.
type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

const TARGETS: [Target; 5] = [
    ("rls", bodies::rls, seeds::messages),
    ("yaml", bodies::yaml, seeds::rule_files),
    ("json", bodies::json, seeds::json),
    ("fields", bodies::fields, seeds::fields),
    ("state", bodies::state::state, seeds::states),
];

#[test]
fn right_input_is_taken() {
    for (name, body, seeds) in TARGETS {
        let seeds = seeds();
        assert!(seeds.len() > 3, "{name}");
        for seed in seeds {
            body(&seed);
        }
    }
}

/// What `cargo fuzz` begins with, a folder a target: `fuzz/corpus/TARGET`.
#[test]
#[ignore = "writes files"]
fn corpora_are_written() {
    for (name, _, seeds) in TARGETS {
        let folder = std::path::Path::new("fuzz/corpus").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
        }
    }
}
