//! What is seen of the limits from outside, for the metrics.

use std::sync::Arc;

use tokio::time::sleep;

use super::Leases;
use crate::{
    model::time::{Now, Span},
    store::{
        fleet::Fleet,
        lease::{Counts, LeaseBook, LimitView},
    },
};

impl Leases {
    /// Every limit of every domain, for the metrics.
    pub fn limits(&self, now: Now) -> Vec<(Arc<str>, Vec<LimitView>)> {
        let books = self.books.by_domain.iter();
        books
            .map(|entry| {
                (
                    Arc::clone(entry.key()),
                    entry.value().with(now, |book| book.limits(now.steady)),
                )
            })
            .collect()
    }

    /// Every limit in the shared store that this process asked for lately, over all replicas, as it
    /// stood when [`Leases::watch`] looked last.
    pub fn shared_limits(&self) -> Vec<(Arc<str>, Vec<LimitView>)> {
        let fleets = self.fleets.iter();
        fleets
            .map(|entry| (Arc::clone(entry.key()), entry.value().limits()))
            .collect()
    }

    /// Looks at those every so often, for ever.
    pub async fn watch(&self, every: Span) {
        loop {
            sleep(every.into()).await;
            let fleets: Vec<Arc<Fleet>> = self
                .fleets
                .iter()
                .map(|entry| Arc::clone(entry.value()))
                .collect();
            for fleet in fleets {
                fleet.look_again().await;
            }
        }
    }

    /// Every domain with what happened in it and its open sessions, for the metrics.
    pub fn totals(&self, now: Now) -> Vec<(Arc<str>, Counts, u64)> {
        let of_book = |book: &mut LeaseBook| {
            let (_, sessions, _) = book.sizes();
            (book.totals().clone(), sessions as u64)
        };
        let books = self.books.by_domain.iter();
        books
            .map(|entry| {
                let (counts, sessions) = entry.value().with(now, of_book);
                (Arc::clone(entry.key()), counts, sessions)
            })
            .collect()
    }
}
