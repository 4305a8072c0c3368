//! What has to be done without a call that asks for it.

use tokio::time::sleep;

use super::Leases;
use crate::model::time::{Clock, Now, Timestamp};

impl Leases {
    /// Ends what is due and tells who waits. What is due is exact at any access; this only serves
    /// those that nobody else's call would serve.
    pub fn turn(&self, now: Now) {
        for book in self.all() {
            book.with(now, |_| ());
        }
    }

    /// Calls [`Leases::turn`] whenever something is due, for ever.
    pub async fn drive(&self, clock: &Clock) {
        loop {
            let notified = self.books.due.notified();
            let next = self.next_due();
            let now = clock.now();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = sleep(now.steady.until(due).into()) => {}
                        () = notified => {}
                    }
                }
                None => notified.await,
            }
            self.turn(clock.now());
        }
    }

    /// When something is due next; see [`LeaseBook::next_due`](crate::store::lease::LeaseBook::next_due).
    pub fn next_due(&self) -> Option<Timestamp> {
        self.all().iter().filter_map(|book| book.next_due()).min()
    }

    /// Frees memory, a few keys of each book at a time.
    pub fn sweep(&self, keys: usize, now: Now) {
        for book in self.all() {
            book.with(now, |book| book.sweep(keys, now.steady));
        }
    }
}
