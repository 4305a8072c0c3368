//! A place in the queue of a book.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{book::Book, rates::RateUnits};
use crate::{
    model::time::Clock,
    store::lease::{Answer, Ticket, Undo},
};

/// A place in the queue. Dropped before the answer was taken, it frees the place, and undoes the
/// grant if there is one already.
#[derive(Debug)]
pub struct Pending {
    pub(super) book: Arc<Book>,
    pub(super) clock: Clock,
    pub(super) ticket: Ticket,
    pub(super) rates: SmallVec<[RateUnits; 2]>,
    pub(super) receiver: oneshot::Receiver<Box<Answer>>,
    pub(super) answered: bool,
}

impl Pending {
    /// The answer, when it is there. Also `None` when the server stops meanwhile.
    pub async fn answer(mut self: Box<Self>) -> Option<Box<Answer>> {
        let answer = (&mut self.receiver).await.ok();
        self.answered = true;
        answer
    }

    /// The rate units that are decided together with the permits.
    pub fn rates(&self) -> &[RateUnits] {
        &self.rates
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let now = self.clock.now();
        if self.book.leave(self.ticket, now) {
            return;
        }
        if let Ok(answer) = self.receiver.try_recv() {
            self.book.undo(&answer, &self.rates, Undo::Left, now);
        }
    }
}
