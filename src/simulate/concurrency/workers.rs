//! A service of equal workers behind one first-in-first-out queue.

use std::collections::VecDeque;

/// Jobs by number: `busy` of them in service, the others in the queue.
#[derive(Debug)]
pub(super) struct Workers<J> {
    free: u64,
    queue: VecDeque<J>,
}

impl<J> Workers<J> {
    pub(super) const fn new(workers: u64) -> Self {
        Self {
            free: workers,
            queue: VecDeque::new(),
        }
    }

    /// A job arrives; the one that starts now, if any.
    pub(super) fn arrive(&mut self, job: J) -> Option<J> {
        if self.free == 0 {
            self.queue.push_back(job);
            return None;
        }
        self.free -= 1;
        Some(job)
    }

    /// A job is done; the one that starts now, if any.
    pub(super) fn done(&mut self) -> Option<J> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.free += 1;
        }
        next
    }
}
