//! Runs the calls of one connection together, right after the read that brought them.

use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Waker},
};

use tokio::task;

/// An executor that keeps the calls which one read brought until the connection asks for them.
///
/// A decision in memory never waits, so a task of its own for each call is work for nothing:
/// measured at 32 calls in flight, running them here takes 5 % off the CPU of a whole call. They
/// run after the read rather than within it, so that their answers leave in one write: one at a
/// time costs a write each and doubles the CPU of a call.
///
/// A call that does wait (a store, a queue, a stream) becomes a task of its own.
#[derive(Clone, Default)]
pub(super) struct Batch(Rc<RefCell<Vec<Call>>>);

type Call = Pin<Box<dyn Future<Output = ()>>>;

/// More calls than this at once, and we are behind: the first look at each only finds out whether it
/// is still wanted (see [`guard`](super::guard)), and the second one comes at once.
pub(super) const BEHIND: usize = 64;

impl Batch {
    /// Starts all calls that have arrived, and says how many.
    pub(super) fn run(&self) -> usize {
        // Taken out, because a call may start another.
        let mut calls = mem::take(&mut *self.0.borrow_mut());
        let count = calls.len();
        if calls.is_empty() {
            return 0;
        }
        // The first look needs no waker: whoever is not ready is looked at again by its own task.
        let mut once = Context::from_waker(Waker::noop());
        for mut call in calls.drain(..) {
            let mut ready = call.as_mut().poll(&mut once).is_ready();
            if !ready && count > BEHIND {
                ready = call.as_mut().poll(&mut once).is_ready();
            }
            if !ready {
                task::spawn_local(call);
            }
        }
        let mut later = self.0.borrow_mut();
        if later.is_empty() {
            // Keeps the room for the next batch.
            *later = calls;
        }
        count
    }

    /// How many calls have arrived.
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

impl<F> hyper::rt::Executor<F> for Batch
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, call: F) {
        self.0.borrow_mut().push(Box::pin(call));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use hyper::rt::Executor as _;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn ready_calls_run_in_order_and_waiting_ones_become_tasks() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let batch = Batch::default();
            let seen = Rc::new(RefCell::new(Vec::new()));
            let (go, wait) = oneshot::channel::<()>();
            let (done, finished) = oneshot::channel();
            for n in 0..2 {
                let seen = Rc::clone(&seen);
                batch.execute(async move { seen.borrow_mut().push(n) });
            }
            let late = Rc::clone(&seen);
            batch.execute(async move {
                wait.await.unwrap();
                late.borrow_mut().push(9);
                done.send(()).unwrap();
            });
            assert_eq!(batch.run(), 3);
            assert_eq!(*seen.borrow(), [0, 1]);
            assert_eq!(batch.run(), 0, "each call is started once");
            go.send(()).unwrap();
            finished.await.unwrap();
            assert_eq!(*seen.borrow(), [0, 1, 9]);
        });
    }

    #[test]
    fn a_call_may_start_another() {
        let batch = Batch::default();
        let ran = Rc::new(Cell::new(false));
        let (inner, flag) = (batch.clone(), Rc::clone(&ran));
        batch.execute(async move { inner.execute(async move { flag.set(true) }) });
        assert_eq!(batch.run(), 1);
        assert_eq!(batch.run(), 1);
        assert!(ran.get());
    }
}
