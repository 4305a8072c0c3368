//! Connections of one worker take turns: one that always has something to read keeps nobody waiting.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    batch::{BEHIND, Batch},
    pulse::Pulse,
};

/// Calls of one connection after which it is the turn of the others: two milliseconds of decisions
/// in memory. What arrived together is run together, so that it may be more.
const TURN: usize = 512;

/// How a turn came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<T> {
    /// The connection has ended.
    Ended(T),
    /// There is more to do, after the others; the connection will be woken.
    Over,
    /// Everything that has arrived is done.
    Done,
}

/// Reads from a connection and runs the calls that come out of it, until there are no more, or for
/// one turn.
pub(super) fn take<C: Future>(
    mut connection: Pin<&mut C>,
    batch: &Batch,
    pulse: &Pulse,
    cx: &mut Context<'_>,
) -> Turn<C::Output> {
    let mut calls = 0;
    loop {
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            return Turn::Ended(result);
        }
        let arrived = batch.len();
        if calls >= TURN && arrived > 0 {
            // Others of this worker have waited long enough.
            cx.waker().wake_by_ref();
            return Turn::Over;
        }
        pulse.set_behind(arrived > BEHIND);
        match batch.run() {
            0 => return Turn::Done,
            // Their answers are written by the next poll.
            more => calls += more,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        future::poll_fn,
        pin::pin,
        rc::Rc,
        sync::Arc,
        task::{Wake, Waker},
    };

    use hyper::rt::Executor as _;
    use tokio::task::spawn_local;

    use super::*;

    /// Calls that one read brings.
    const READ: usize = 100;

    /// Who ran calls, in their order.
    type Ran = Rc<RefCell<Vec<char>>>;

    /// A connection from which so many reads can be made, as often as it is asked.
    fn connection(
        name: char,
        mut reads: usize,
        batch: Batch,
        ran: Ran,
    ) -> impl Future<Output = ()> {
        poll_fn(move |_| {
            if let Some(left) = reads.checked_sub(1) {
                reads = left;
                for _ in 0..READ {
                    let ran = Rc::clone(&ran);
                    batch.execute(async move { ran.borrow_mut().push(name) });
                }
            }
            Poll::Pending
        })
    }

    struct Woken(parking_lot::Mutex<bool>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            *self.0.lock() = true;
        }
    }

    #[test]
    fn a_turn_ends_although_more_has_arrived_and_goes_on_later() {
        let (batch, pulse, ran) = (Batch::default(), Pulse::default(), Ran::default());
        let mut busy = pin!(connection('b', 9, batch.clone(), Rc::clone(&ran)));
        let woken = Arc::new(Woken(parking_lot::Mutex::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut take = || take(busy.as_mut(), &batch, &pulse, &mut cx);
        assert_eq!(take(), Turn::Over);
        assert_eq!(ran.borrow().len(), 600, "the first 512 and their read");
        assert!(std::mem::take(&mut *woken.0.lock()));
        assert_eq!(take(), Turn::Done);
        assert_eq!(ran.borrow().len(), 900);
        assert!(!*woken.0.lock(), "until something arrives");
    }

    #[test]
    fn a_connection_that_ended_is_not_read_again() {
        let (batch, pulse) = (Batch::default(), Pulse::default());
        let mut cx = Context::from_waker(Waker::noop());
        let ended = take(pin!(async { 7 }), &batch, &pulse, &mut cx);
        assert_eq!(ended, Turn::Ended(7));
    }

    #[test]
    fn busy_connections_of_one_worker_take_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        let ran = Ran::default();
        runtime.block_on(async {
            let connections = [('a', 100), ('b', 100), ('c', 1)].map(|(name, reads)| {
                let ran = Rc::clone(&ran);
                spawn_local(async move {
                    let (batch, pulse) = (Batch::default(), Pulse::default());
                    let mut connection = pin!(connection(name, reads, batch.clone(), ran));
                    poll_fn(|cx| match take(connection.as_mut(), &batch, &pulse, cx) {
                        Turn::Over => Poll::Pending,
                        Turn::Done | Turn::Ended(()) => Poll::Ready(()),
                    })
                    .await;
                })
            });
            for connection in connections {
                connection.await.unwrap();
            }
        });
        let ran = ran.borrow();
        assert_eq!(ran.len(), 201 * READ);
        let runs: Vec<usize> = ran.chunk_by(|a, b| a == b).map(<[char]>::len).collect();
        // While all have something to do, nobody has more than a turn at a time; the last of them
        // has the rest.
        let (_, contended) = runs.split_last().unwrap();
        assert!(contended.iter().all(|run| *run <= TURN + READ), "{runs:?}");
        let small = ran.iter().position(|name| *name == 'c').unwrap();
        assert!(small <= 2 * (TURN + READ), "one call waited for {small}");
    }
}
