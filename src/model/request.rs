//! A question: which descriptors, at what cost.

use smallvec::SmallVec;

use crate::model::{lease::Peer, time::Span};

/// One call: everything in it is decided together. Borrows from the wire message.
///
/// The entries of all descriptors stand in one list, so that a request is small to move and
/// touches the heap only when it is unusually large.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Names the rule tree.
    pub domain: &'a str,
    /// Cost of descriptors that have none of their own; 0 means 1.
    pub hits_addend: u32,
    /// Whose connection it came through; none when that is not known or does not matter.
    pub peer: Option<Peer>,
    /// In the order of the message; verdicts keep that order.
    pub descriptors: SmallVec<[Descriptor; 4]>,
    entries: SmallVec<[Entry<'a>; 8]>,
}

impl<'a> Request<'a> {
    /// A request without descriptors.
    pub fn new(domain: &'a str) -> Self {
        Self {
            domain,
            ..Self::default()
        }
    }

    /// Adds a descriptor of these entries; returns it, to give it a cost or a limit.
    pub fn add(&mut self, entries: impl IntoIterator<Item = Entry<'a>>) -> &mut Descriptor {
        let first = self.entries.len();
        for entry in entries {
            self.entries.push(entry);
        }
        let count = self.entries.len() - first;
        self.descriptors.push(Descriptor {
            first,
            count,
            ..Descriptor::default()
        });
        let last = self.descriptors.len() - 1;
        &mut self.descriptors[last]
    }

    /// Adds an entry to the latest descriptor; to none if there is none.
    #[inline]
    pub fn add_entry(&mut self, entry: Entry<'a>) {
        if let Some(descriptor) = self.descriptors.last_mut() {
            self.entries.push(entry);
            descriptor.count += 1;
        }
    }

    /// As it was made, but it keeps the room of its lists.
    pub fn clear(&mut self) {
        self.domain = "";
        self.hits_addend = 0;
        self.peer = None;
        self.descriptors.clear();
        self.entries.clear();
    }

    /// The entries of one of this request's descriptors.
    pub fn entries(&self, descriptor: &Descriptor) -> &[Entry<'a>] {
        self.entries
            .get(descriptor.first..descriptor.first + descriptor.count)
            .unwrap_or_default()
    }

    /// The entries of all descriptors.
    pub fn all_entries(&self) -> &[Entry<'a>] {
        &self.entries
    }
}

/// An ordered list of entries ([`Request::entries`]) that together select a rule. The list may be
/// empty: then nothing matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    first: usize,
    count: usize,
    /// A limit that came with the request.
    pub limit: Option<Override>,
    /// Cost of this descriptor; `Some(0)` looks without touching.
    pub hits_addend: Option<u64>,
    /// The cost is given back.
    pub is_negative_hits: bool,
}

/// Requests that are put aside and taken up again in their order. A [`Request`] has room for what
/// most need and more; here each takes what it needs, so that a hundred stay in the nearest cache.
#[derive(Debug, Default)]
pub struct Kept<'a> {
    heads: Vec<Head<'a>>,
    descriptors: Vec<Descriptor>,
    entries: Vec<Entry<'a>>,
}

#[derive(Debug)]
struct Head<'a> {
    domain: &'a str,
    hits_addend: u32,
    peer: Option<Peer>,
    descriptors: usize,
    entries: usize,
}

impl<'a> Kept<'a> {
    /// With room for so many requests of one descriptor with two entries.
    pub fn with_capacity(requests: usize) -> Self {
        Self {
            heads: Vec::with_capacity(requests),
            descriptors: Vec::with_capacity(requests),
            entries: Vec::with_capacity(requests.saturating_mul(2)),
        }
    }

    /// Puts one more aside.
    pub fn push(&mut self, request: &Request<'a>) {
        self.heads.push(Head {
            domain: request.domain,
            hits_addend: request.hits_addend,
            peer: request.peer,
            descriptors: request.descriptors.len(),
            entries: request.entries.len(),
        });
        self.descriptors.extend_from_slice(&request.descriptors);
        self.entries.extend_from_slice(&request.entries);
    }

    /// Takes each up again, in `request`, whatever that was before.
    pub fn each(&self, request: &mut Request<'a>, mut each: impl FnMut(&Request<'a>)) {
        let (mut descriptors, mut entries) = (self.descriptors.iter(), self.entries.iter());
        for head in &self.heads {
            request.clear();
            request.domain = head.domain;
            request.hits_addend = head.hits_addend;
            request.peer = head.peer;
            for descriptor in descriptors.by_ref().take(head.descriptors) {
                request.descriptors.push(*descriptor);
            }
            for entry in entries.by_ref().take(head.entries) {
                request.entries.push(*entry);
            }
            each(request);
        }
    }
}

/// One key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// For example `remote_address`.
    pub key: &'a str,
    /// For example `10.0.0.1`; may be empty.
    pub value: &'a str,
}

/// A limit that came with the request: a clock-aligned fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Override {
    /// 0 refuses everything.
    pub requests_per_unit: u32,
    /// Length of the unit.
    pub unit: Unit,
    /// The window is this many units long; at least 1.
    pub unit_multiplier: u32,
}

/// The reference's units. Months and years are blocks of 30 and 365 days since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s
    Second,
    /// 60 s
    Minute,
    /// 3,600 s
    Hour,
    /// 86,400 s
    Day,
    /// 604,800 s; starts Thursday 00:00 UTC
    Week,
    /// 2,592,000 s
    Month,
    /// 31,536,000 s
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Length of the unit.
    pub const fn span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        })
    }

    /// Lower-case English name, as rule files write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Reads a name in any letter case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::CounterKey;

    #[test]
    fn what_is_kept_is_taken_up_again_as_it_was() {
        let entry = |value| Entry { key: "k", value };
        let mut first = Request::new("a");
        first.peer = Some(Peer(CounterKey::from_bits(7)));
        first.add([entry("1"), entry("2")]).hits_addend = Some(0);
        first.add([]);
        first.add([entry("3")]).is_negative_hits = true;
        let mut last = Request::new("b");
        last.hits_addend = 9;
        for _ in 0..20 {
            last.add([entry("4")]);
        }
        let requests = [first, Request::default(), last];
        let mut kept = Kept::with_capacity(1);
        for request in &requests {
            kept.push(request);
        }
        let mut seen = Vec::new();
        kept.each(&mut requests[0].clone(), |request| {
            seen.push(format!("{request:?}"));
        });
        assert_eq!(seen, requests.map(|request| format!("{request:?}")));
    }
}
