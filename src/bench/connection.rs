//! One connection that is opened again when it ends.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use tokio::{
    net::TcpStream,
    sync::Notify,
    task,
    time::{sleep, timeout},
};

use crate::bench::target::Target;

/// How long opening may take.
const OPEN: Duration = Duration::from_secs(5);
/// How long to wait after a connection could not be opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// Receive windows: so large that answers never wait for them.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 26;

/// A connection of one lane, or the place of one that is being opened.
#[derive(Debug, Default)]
pub(super) struct Slot {
    sender: RefCell<Option<SendRequest<Bytes>>>,
    lost: Notify,
    opened: Cell<u64>,
    keeper: RefCell<Option<task::JoinHandle<()>>>,
}

type Wire = Connection<TcpStream, Bytes>;

impl Slot {
    /// Opens a connection; from then on it is opened again whenever it ends.
    pub(super) async fn open(target: &Target) -> io::Result<Rc<Self>> {
        let (sender, wire) = open(target).await?;
        let slot = Rc::new(Self::default());
        slot.keep(target.clone(), Some((sender, wire)));
        Ok(slot)
    }

    /// Does something with the way to send; none while there is no connection.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut SendRequest<Bytes>) -> T) -> Option<T> {
        self.sender.borrow_mut().as_mut().map(act)
    }

    /// The connection takes no more calls.
    pub(super) fn lost(&self) {
        if self.sender.take().is_some() {
            self.lost.notify_one();
        }
    }

    /// How often it was opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// Breaks the connection with all calls that wait for an answer on it, and opens another.
    pub(super) fn reopen(self: &Rc<Self>, target: &Target) {
        self.close();
        self.keep(target.clone(), None);
    }

    /// Breaks the connection with all calls that wait for an answer on it.
    pub(super) fn close(&self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
        self.sender.take();
    }

    fn keep(self: &Rc<Self>, target: Target, first: Option<(SendRequest<Bytes>, Wire)>) {
        if let Some((sender, _)) = &first {
            self.sender.replace(Some(sender.clone()));
            self.opened.set(self.opened.get() + 1);
        }
        let keeper = task::spawn_local(keep(Rc::clone(self), target, first.map(|(_, wire)| wire)));
        self.keeper.replace(Some(keeper));
    }
}

async fn keep(slot: Rc<Slot>, target: Target, mut wire: Option<Wire>) {
    // Ends with this task, so that closing breaks also those that only finish their calls.
    let mut finishing = task::JoinSet::new();
    loop {
        if let Some(mut wire) = wire.take() {
            tokio::select! {
                // The lane counts what breaks, call by call.
                _ended = &mut wire => {}
                // It finishes its calls beside its successor.
                () = slot.lost.notified() => {
                    finishing.spawn_local(async { drop(wire.await) });
                }
            }
            slot.sender.take();
        }
        match open(&target).await {
            Ok((sender, opened)) => {
                slot.sender.replace(Some(sender));
                slot.opened.set(slot.opened.get() + 1);
                wire = Some(opened);
            }
            Err(_later) => sleep(PAUSE).await,
        }
        while finishing.try_join_next().is_some() {}
    }
}

async fn open(target: &Target) -> io::Result<(SendRequest<Bytes>, Wire)> {
    let opening = async {
        let stream = TcpStream::connect(target.host_and_port()).await?;
        stream.set_nodelay(true)?;
        Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(stream)
            .await
            .map_err(io::Error::other)
    };
    timeout(OPEN, opening)
        .await
        .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}
