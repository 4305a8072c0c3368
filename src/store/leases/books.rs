//! The books of all domains whose leases are in this process.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::store::leases::book::Book;

/// The books, by domain.
#[derive(Debug, Default)]
pub(in crate::store) struct Books {
    pub(super) by_domain: DashMap<Arc<str>, Arc<Book>>,
    /// Something is due earlier than before.
    pub(super) due: Arc<Notify>,
}

impl Books {
    pub(super) fn all(&self) -> Vec<Arc<Book>> {
        let books = self.by_domain.iter();
        books.map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Does something with every book.
    pub(in crate::store) fn each(&self, mut act: impl FnMut(&Book)) {
        for book in self.all() {
            act(&book);
        }
    }

    /// [`Leases::drive`](super::Leases::drive) has to look again when something is due.
    pub(in crate::store) fn something_is_due(&self) {
        self.due.notify_one();
    }
}
