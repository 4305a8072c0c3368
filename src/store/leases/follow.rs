//! Leases over restarts: what is saved of them, and how a new life takes them over.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::Mutex;

use super::Leases;
use crate::{
    model::time::{Now, Span, Timestamp},
    rules::concurrency::ConcurrencyRule,
    store::{
        fleet::NO_BOOT,
        lease::LeaseBook,
        state::{SavedBook, SavedLeases, Snapshot},
    },
};

/// More fences than can be told between two writes of a state.
const FENCES_UNSAVED: u64 = 1 << 32;

/// What is known of the life before.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Whether something is.
    is_there: bool,
    /// So long before this life began can the last lease have been granted that is not known: by
    /// a life that was killed after its latest write, of which there may have been several since.
    unknown_for: Span,
    /// No larger fence was told.
    fence: u64,
    /// Books that wait for rules.
    unopened: Mutex<Unopened>,
}

/// What is left of leases is told for `written`, a date.
#[derive(Debug, Default)]
struct Unopened {
    written: Timestamp,
    books: Vec<SavedBook>,
}

impl Earlier {
    pub(super) const fn is_there(&self) -> bool {
        self.is_there
    }

    /// Tells a book of this life about it.
    pub(super) fn precede(&self, book: &mut LeaseBook, started: Timestamp) {
        book.raise_fence(self.fence);
        book.follow_known_since(started, self.unknown_for);
    }
}

impl Leases {
    /// Follows the life that wrote `snapshot`. To be called before anything is asked for; its
    /// leases are there once rules are.
    pub fn follow(&mut self, snapshot: &Snapshot, now: Now) {
        let saved = &snapshot.leases;
        // What happened after a write that was not the last word is not known, and may have
        // happened until now.
        let (unsaved, unknown_for) = if snapshot.is_clean {
            let down = now.wall.since(snapshot.written);
            (0, saved.unknown_for.saturating_add(down))
        } else {
            (FENCES_UNSAVED, Span::ZERO)
        };
        self.boot = saved.boot.wrapping_add(1).max(NO_BOOT + 1);
        self.earlier = Earlier {
            is_there: true,
            unknown_for,
            fence: saved.fence.saturating_add(unsaved),
            unopened: Mutex::new(Unopened {
                written: snapshot.written,
                books: saved.books.clone(),
            }),
        };
        let next = saved.books.iter().map(|book| book.number.saturating_add(1));
        self.next
            .store(next.max().unwrap_or_default(), Ordering::Relaxed);
    }

    /// Everything that has to survive a restart. Each book is locked for as long as it takes to
    /// copy its leases.
    pub fn save(&self, now: Now) -> SavedLeases {
        let mut saved = SavedLeases {
            boot: self.boot,
            fence: self.earlier.fence.max(self.departed.fence()),
            unknown_for: (self.earlier.unknown_for).saturating_add(now.steady.since(self.started)),
            books: Vec::new(),
        };
        // Held to the end: no book moves from here to there meanwhile, and is seen twice or not.
        let unopened = self.earlier.unopened.lock();
        let down = now.wall.since(unopened.written);
        for book in &unopened.books {
            saved.books.push(aged(book, down));
        }
        let books = self.books.by_domain.iter();
        let books: Vec<_> = books
            .map(|entry| (Arc::clone(entry.key()), Arc::clone(entry.value())))
            .collect();
        for (domain, book) in books {
            let (number, kept) =
                book.with(now, |book| (book.identity().book, book.save(now.steady)));
            saved.fence = saved.fence.max(kept.fence);
            saved.books.push(SavedBook {
                domain,
                number,
                saved: kept,
            });
        }
        saved
    }

    /// Opens the books of the life before, now that there are rules. What these do not know any
    /// more is dropped.
    pub(super) fn reopen(&self, rule_of: impl Fn(&str) -> Option<Arc<ConcurrencyRule>>, now: Now) {
        let mut unopened = self.earlier.unopened.lock();
        let Unopened { written, books } = std::mem::take(&mut *unopened);
        let down = now.wall.since(written);
        for saved in books {
            let mut book = LeaseBook::reopen(
                self.identity(saved.number),
                self.bounds,
                rand::random(),
                now.steady,
                &saved.saved,
                down,
                &rule_of,
            );
            self.begin(&mut book);
            let book = self.book(book);
            self.by_number.insert(saved.number, Arc::clone(&book));
            self.books.by_domain.insert(saved.domain, book);
        }
    }
}

/// A book after a while in which nothing happened to it.
fn aged(book: &SavedBook, down: Span) -> SavedBook {
    let mut book = book.clone();
    book.saved.leases.retain(|lease| lease.remaining > down);
    for lease in &mut book.saved.leases {
        lease.age = lease.age.saturating_add(down);
        lease.remaining = lease.remaining.saturating_sub(down);
        lease.lifetime = lease.lifetime.saturating_sub(down);
    }
    book
}
