//! The connections of a lane: a call goes to the next one that takes it.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};

use crate::bench::{
    call::{self, Failure, Head},
    connection::Slot,
    target::Target,
};

/// Some connections to one server.
#[derive(Debug)]
pub(super) struct Wire {
    target: Target,
    slots: Vec<Rc<Slot>>,
    next: Cell<usize>,
}

/// What became of a call that was to be sent at once.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is on its way.
    Sent(ResponseFuture),
    /// The server has all the calls it takes at once on this connection.
    Full(SendRequest<Bytes>),
    /// There is no connection that takes calls.
    Nowhere,
}

impl Wire {
    /// Opens `count` connections.
    pub(super) async fn open(target: &Target, count: usize) -> io::Result<Self> {
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            slots.push(Slot::open(target).await?);
        }
        Ok(Self {
            target: target.clone(),
            slots,
            next: Cell::new(0),
        })
    }

    /// How many connections were opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.slots.iter().map(|slot| slot.opened()).sum()
    }

    /// Breaks every connection with the calls on it, and opens others.
    pub(super) fn reopen(&self) {
        self.slots.iter().for_each(|slot| slot.reopen(&self.target));
    }

    /// Closes every connection.
    pub(super) fn close(&self) {
        self.slots.iter().for_each(|slot| slot.close());
    }

    /// Sends a call without waiting for anything.
    pub(super) fn begin(&self, head: &Head, message: &Bytes) -> Begun {
        for _ in 0..self.slots.len() {
            let place = self.next.get();
            self.next.set((place + 1) % self.slots.len());
            let slot = &self.slots[place];
            match slot.with(|sender| on(sender, head, message)) {
                Some(Begun::Nowhere) => slot.lost(),
                Some(begun) => return begun,
                None => {}
            }
        }
        Begun::Nowhere
    }

    /// A whole call.
    pub(super) async fn call<M>(&self, head: &Head, message: Bytes) -> Result<M, Failure>
    where
        M: prost::Message + Default,
    {
        let begun = self.begin(head, &message);
        self.finish(head, &message, begun, || {}).await
    }

    /// A whole call from what [`Wire::begin`] said; `sent` is told when it is written later than
    /// that. One that a server who leaves did not begin is sent again, as gRPC clients do.
    pub(super) async fn finish<M>(
        &self,
        head: &Head,
        message: &Bytes,
        mut begun: Begun,
        sent: impl Fn(),
    ) -> Result<M, Failure>
    where
        M: prost::Message + Default,
    {
        for _ in 0..MOST_TRIES {
            let answer = match begun {
                Begun::Sent(answer) => answer,
                Begun::Nowhere => return Err(Failure::NoConnection),
                Begun::Full(sender) => {
                    let Ok(answer) = later(sender, head, message.clone()).await else {
                        // The connection ended before it took the call.
                        begun = self.begin(head, message);
                        continue;
                    };
                    sent();
                    answer
                }
            };
            match call::answer(answer).await {
                Err(Failure::NotBegun) => {
                    begun = self.begin(head, message);
                    sent();
                }
                answer => return answer,
            }
        }
        Err(Failure::NotBegun)
    }
}

/// How often a call is tried on connections that end.
const MOST_TRIES: u32 = 5;

fn on(sender: &mut SendRequest<Bytes>, head: &Head, message: &Bytes) -> Begun {
    // Nobody has to be woken: whoever waits does so with a handle of its own.
    match sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => {
            let sent = ready.and_then(|()| call::send(sender, head, message.clone()));
            sent.map_or(Begun::Nowhere, Begun::Sent)
        }
        Poll::Pending => Begun::Full(sender.clone()),
    }
}

/// Sends a call as soon as the connection takes it.
async fn later(
    mut sender: SendRequest<Bytes>,
    head: &Head,
    message: Bytes,
) -> Result<ResponseFuture, h2::Error> {
    let ready = poll_fn(|cx| sender.poll_ready(cx)).await;
    ready.and_then(|()| call::send(&mut sender, head, message))
}
