//! What is asked of a book, and what it answers.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{Cause, Criticality, Decision, Holder, LeaseId, Peer},
        time::{Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::lease::session::SessionId,
};

/// Most items of one request.
pub const MAX_ITEMS: usize = 32;
/// Most permits of one key in one request: so few that no sum over a book can overflow.
pub const MAX_PERMITS: u64 = 1 << 40;
/// Longest request id, in bytes.
pub const MAX_REQUEST_ID: usize = 64;

/// A request for permits; everything in it is decided together.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Who asks.
    pub holder: Holder,
    /// The same id from the same holder is the same request. Empty: every call is a new one.
    pub request_id: &'a [u8],
    /// 1 to [`MAX_ITEMS`]; items with the same key are added up.
    pub items: &'a [Item],
    /// Items whose caller did not say how many permits they need, one bit each, the first one the
    /// lowest: they stand for what was learned, if their rule learns. Else they need what they say.
    pub unsaid: u32,
    /// How the lease is found again.
    pub naming: Naming,
    /// Life of the lease; none takes what the rules say.
    pub ttl: Option<Span>,
    /// Mean hold to start from while nothing is known about a key.
    pub expected_hold: Option<Span>,
    /// How long it may wait for permits; none takes what the rules say.
    pub max_wait: Option<Span>,
    /// It never waits longer than this, whatever anybody says.
    pub wait_cap: Span,
    /// When the caller gives up on the work itself: a hint beyond it is hopeless, and whoever
    /// cannot finish before it does not wait.
    pub deadline: Option<Timestamp>,
    /// Who is refused first.
    pub criticality: Criticality,
    /// 0…127, stable per user: places the request inside its criticality.
    pub cohort: Option<u8>,
    /// Whose fair share it counts against.
    pub tenant: Option<CounterKey>,
    /// The lease ends with this session.
    pub session: Option<SessionId>,
    /// Whose connection it came through: see [`super::LeaseBook::peer_gone`].
    pub peer: Option<Peer>,
    /// Leases that the caller says it still holds.
    pub adopt: &'a [LeaseId],
    /// Fewer permits will do, down to [`Item::least`]; only for a single item.
    pub partial: bool,
    /// Decide and change nothing.
    pub dry_run: bool,
    /// Items without a rule refuse the request; else they are ignored.
    pub refuse_unknown: bool,
}

impl<'a> Ask<'a> {
    /// A request of nobody in particular that does not wait.
    pub fn new(items: &'a [Item]) -> Self {
        Self {
            holder: Holder::default(),
            request_id: &[],
            items,
            unsaid: 0,
            naming: Naming::Issued,
            ttl: None,
            expected_hold: None,
            max_wait: None,
            wait_cap: Span::MAX,
            deadline: None,
            criticality: Criticality::default(),
            cohort: None,
            tenant: None,
            session: None,
            peer: None,
            adopt: &[],
            partial: false,
            dry_run: false,
            refuse_unknown: false,
        }
    }
}

/// Permits of one limit.
#[derive(Clone, Debug)]
pub struct Item {
    /// The counted instance of the limit.
    pub key: CounterKey,
    /// What it is held to; none when no rule matches.
    pub rule: Option<Arc<ConcurrencyRule>>,
    /// How many. 0 only in a dry run: is there one left?
    pub permits: u64,
    /// How few would do, if the request is partial.
    pub least: u64,
}

impl Item {
    /// One permit of a limit.
    pub fn one(key: CounterKey, rule: &Arc<ConcurrencyRule>) -> Self {
        Self::many(key, rule, 1)
    }

    /// Several permits of a limit.
    pub fn many(key: CounterKey, rule: &Arc<ConcurrencyRule>, permits: u64) -> Self {
        Self {
            key,
            rule: Some(Arc::clone(rule)),
            permits,
            least: permits,
        }
    }
}

/// How a lease is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// By the id that the answer carries: one lease over all items.
    Issued,
    /// By a name of the caller's, hashed, that is valid within each key: one lease per item.
    Named(CounterKey),
    /// Not at all: a release ends the oldest such lease of the key. One lease per item.
    Anonymous,
}

/// A place in the queue; also the name under which its end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// What a request gets.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Reply {
    /// The answer.
    Now(Box<Answer>),
    /// It waits; [`super::Event::Settled`] with this ticket will bring the answer.
    Waits(Ticket),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What was decided.
    pub decision: Decision,
    /// For granted, replayed and ended ones. Several only when the caller named them.
    pub leases: SmallVec<[LeaseId; 1]>,
    /// Grows with every grant of the book; a store downstream refuses smaller ones.
    pub fence: u64,
    /// Life of the lease from now on.
    pub expires_in: Span,
    /// When the holder should renew it.
    pub renew_after: Span,
    /// One per item of the request, in its order, after the decision.
    pub items: SmallVec<[ItemState; 2]>,
    /// Places of all items that were short.
    pub limiting: SmallVec<[usize; 2]>,
    /// Place of the item that makes the request impossible.
    pub offender: Option<usize>,
    /// Why it was refused: of several causes the one with the longest wait.
    pub cause: Option<Cause>,
    /// A resource that callers share, or shedding, caused the refusal: 503 and not 429. Of several
    /// causes that of the longest wait decides. Who is above its fair share is refused for its own
    /// demand, whoever shares the limit.
    pub shared: bool,
    /// When to come back; none when there is no point.
    pub retry_after: Option<Span>,
    /// Coming back is later than the caller's deadline.
    pub hopeless: bool,
    /// A caller that came back: how much later than it was told, in seconds.
    pub hint_error: Option<f64>,
    /// How long it waited in the queue.
    pub waited: Span,
    /// The lease with whose end the rate units of the request may have to be given back: see
    /// [`super::Event::RatesSettled`]. None when they never are.
    pub rates_hang_on: Option<LeaseId>,
}

impl Answer {
    /// An answer that says nothing but the decision.
    pub fn new(decision: Decision) -> Self {
        Self {
            decision,
            leases: SmallVec::new(),
            fence: 0,
            expires_in: Span::ZERO,
            renew_after: Span::ZERO,
            items: SmallVec::new(),
            limiting: SmallVec::new(),
            offender: None,
            cause: None,
            shared: false,
            retry_after: None,
            hopeless: false,
            hint_error: None,
            waited: Span::ZERO,
            rates_hang_on: None,
        }
    }

    /// Whether the work may start.
    pub const fn is_go(&self) -> bool {
        matches!(
            self.decision,
            Decision::Granted | Decision::Replayed | Decision::WouldGrant
        )
    }
}

/// One key after a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ItemState {
    /// Permits that there are; 0 also for an item without a rule.
    pub limit: u64,
    /// Permits that are out.
    pub in_flight: u64,
    /// Permits that are left.
    pub remaining: u64,
    /// Requests that wait for this key.
    pub waiters: u64,
    /// Permits that this request got.
    pub granted: u64,
    /// Estimated mean hold in seconds.
    pub mean_hold: f64,
    /// Permits given back per second.
    pub throughput: f64,
    /// The limit was short and only looked on.
    pub shadow_short: bool,
    /// Why this item refused, if it did: its own cause, whatever decided in the end.
    pub cause: Option<Cause>,
    /// When this item alone would let the request pass, if it refused.
    pub retry_after: Option<Span>,
    /// The refusal of this item is not the caller's fault; see [`Answer::shared`].
    pub shared: bool,
}

/// A rate limit of the same request that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateShort {
    /// When it would pass; none when never.
    pub retry_after: Option<Span>,
    /// Several callers share it.
    pub shared: bool,
}

/// Why a request cannot even be decided. All but the last three are the caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nothing asked for.
    #[error("at least one item is needed")]
    NoItems,
    /// More than [`MAX_ITEMS`].
    #[error("at most 32 items")]
    TooManyItems,
    /// Longer than [`MAX_REQUEST_ID`].
    #[error("a request id has at most 64 bytes")]
    RequestIdTooLong,
    /// An item asks for nothing.
    #[error("an item needs at least one permit")]
    NoPermits,
    /// More than [`MAX_PERMITS`] of one key.
    #[error("at most 2^40 permits")]
    TooManyPermits,
    /// The session is over, or was never there.
    #[error("no such session")]
    NoSession,
    /// A bound of [`super::Bounds`] is reached.
    #[error("this holder has too many leases")]
    HolderFull,
    /// A bound of [`super::Bounds`] is reached.
    #[error("this session has too many leases")]
    SessionFull,
    /// A bound of [`super::Bounds`] is reached.
    #[error("too many leases or keys")]
    BookFull,
}
