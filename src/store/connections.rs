//! Who is connected: so that the leases of a proxy that died end early.
//!
//! Whoever serves connections [opens](Connections::open) a [`Connection`] for each and closes it,
//! saying who ended it. A call asks its connection whose it is; leases remember the answer. When the
//! last connection of a peer is gone, and it was not this server that closed it, the lease books are
//! told: see [`crate::store::lease::LeaseBook::peer_gone`].

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    model::{key::KeyHasher, lease::Peer, time::Now},
    store::leases::books::Books,
};

/// Most nodes that one connection speaks for; calls of more count as the address's.
const MOST_NODES: usize = 16;

/// All connections, by peer. Lock order: this, then a book.
#[derive(Debug)]
pub struct Connections {
    books: Arc<Books>,
    hasher: KeyHasher,
    /// How many each peer has; only those that have one.
    open: Mutex<HashMap<Peer, usize>>,
    /// Some rule wants to know.
    wanted: AtomicBool,
}

/// One connection; it counts as open until [`Connection::close`].
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    /// None for a local socket, through which anybody may come.
    address: Option<Peer>,
    nodes: Mutex<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    closed: bool,
    known: SmallVec<[Peer; 1]>,
}

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// The other side, or the network.
    Peer,
    /// This server, for reasons of its own (age, idleness, its end): it says nothing about the peer.
    Us,
}

impl Connections {
    pub(super) fn new(books: Arc<Books>) -> Self {
        Self {
            books,
            hasher: KeyHasher::random(),
            open: Mutex::default(),
            wanted: AtomicBool::new(false),
        }
    }

    /// A connection from `address` is open.
    pub fn open(self: &Arc<Self>, address: Option<IpAddr>, now: Now) -> Connection {
        let address = address.map(|address| self.peer("address", &address.to_string()));
        if let Some(peer) = address {
            self.join(peer, now);
        }
        Connection {
            all: Arc::clone(self),
            address,
            nodes: Mutex::default(),
        }
    }

    /// Whether it matters whose connection a call comes through.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    pub(super) fn set_wanted(&self, wanted: bool) {
        self.wanted.store(wanted, Relaxed);
    }

    fn peer(&self, kind: &str, name: &str) -> Peer {
        let mut hasher = self.hasher;
        hasher.text(kind);
        hasher.text(name);
        Peer(hasher.finish())
    }

    fn join(&self, peer: Peer, now: Now) {
        let mut open = self.open.lock();
        let count = open.entry(peer).or_default();
        *count += 1;
        if *count == 1 {
            self.books
                .each(|book| book.with(now, |book| book.peer_back(peer, now.steady)));
        }
    }

    fn leave(&self, peer: Peer, by: ClosedBy, now: Now) {
        let mut open = self.open.lock();
        let Some(count) = open.get_mut(&peer) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        open.remove(&peer);
        if by == ClosedBy::Peer {
            self.books
                .each(|book| book.with(now, |book| book.peer_gone(peer, now.steady)));
            self.books.something_is_due();
        }
    }
}

impl Connection {
    /// Whose call this is: that of the node which the call names, else of the address. None when
    /// neither is known.
    pub fn peer(&self, node: Option<&str>, now: Now) -> Option<Peer> {
        let Some(node) = node.filter(|node| !node.is_empty()) else {
            return self.address;
        };
        let peer = self.all.peer("node", node);
        let mut nodes = self.nodes.lock();
        if nodes.known.contains(&peer) {
            return Some(peer);
        }
        if nodes.closed || nodes.known.len() >= MOST_NODES {
            return self.address;
        }
        nodes.known.push(peer);
        self.all.join(peer, now);
        Some(peer)
    }

    /// It has ended.
    pub fn close(&self, by: ClosedBy, now: Now) {
        let mut nodes = self.nodes.lock();
        if std::mem::replace(&mut nodes.closed, true) {
            return;
        }
        for peer in nodes.known.iter().chain(&self.address) {
            self.all.leave(*peer, by, now);
        }
    }

    /// See [`Connections::is_wanted`].
    pub fn is_wanted(&self) -> bool {
        self.all.is_wanted()
    }
}
