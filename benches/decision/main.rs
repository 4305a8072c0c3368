//! The decision alone, without a wire: `cargo bench --bench decision`.
//!
//! All of it runs in one process, governor's keyed limiter too, so that ratios mean something on a
//! machine whose speed does not hold still. Every decision reads the clock once, as served ones do.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on falls over")]

mod algorithms;
mod fixture;
mod parts;
mod peer;
mod scale;
mod store;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Short measurements: there are many, and all must fit into a few minutes.
fn settings() -> Criterion {
    porteiro::pages::use_ordinary_pages();
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(20)
        .without_plots()
}

criterion_group! {
    name = decision;
    config = settings();
    targets = peer::bench, parts::bench, algorithms::bench, scale::bench, store::bench
}
criterion_main!(decision);
