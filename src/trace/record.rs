//! One request of a trace, with all its texts in one buffer that is used again.

use crate::model::{
    request::{Entry, Override, Request},
    time::Timestamp,
};

/// A request and when it came.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Number of its line, from 1.
    pub line: u64,
    /// When it came, on the wall line.
    pub time: Timestamp,
    /// Cost of descriptors that name none; none means 1.
    pub cost: Option<u64>,
    text: String,
    domain: Option<Part>,
    entries: Vec<(Part, Part)>,
    descriptors: Vec<Shape>,
}

/// A part of `text`.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    /// End of its entries; they begin where those of the one before end.
    end: usize,
    own: Own,
}

/// What a descriptor says besides its entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    /// Its own cost.
    pub cost: Option<u64>,
    /// The cost is given back.
    pub refund: bool,
    /// A limit that came with the request.
    pub limit: Option<Override>,
}

impl Record {
    /// Makes it empty, keeping its memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
        self.descriptors.clear();
        self.domain = None;
        self.cost = None;
    }

    /// Names the domain.
    pub fn set_domain(&mut self, domain: &str) {
        self.domain = Some(self.keep(domain));
    }

    /// Adds an entry to the descriptor that is being built.
    pub fn entry(&mut self, key: &str, value: &str) {
        let entry = (self.keep(key), self.keep(value));
        self.entries.push(entry);
    }

    /// Ends the descriptor that is being built.
    pub fn end(&mut self, own: Own) {
        self.descriptors.push(Shape {
            end: self.entries.len(),
            own,
        });
    }

    /// Forgets the entries of the descriptor that is being built.
    pub fn undo(&mut self) {
        self.entries
            .truncate(self.entries_before(self.descriptors.len()));
    }

    /// True when no descriptor was made.
    pub fn has_no_descriptors(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// True when it says which domain it is for.
    pub fn names_domain(&self) -> bool {
        self.domain.is_some()
    }

    /// The request; `default_domain` where it names none.
    pub fn request<'a>(&'a self, default_domain: &'a str) -> Request<'a> {
        let domain = self
            .domain
            .map_or(default_domain, |domain| self.part(domain));
        let mut request = Request::new(domain);
        for (index, shape) in self.descriptors.iter().enumerate() {
            let entries = self.entries.get(self.entries_before(index)..shape.end);
            let entries = entries
                .unwrap_or_default()
                .iter()
                .map(|(key, value)| Entry {
                    key: self.part(*key),
                    value: self.part(*value),
                });
            let descriptor = request.add(entries);
            descriptor.limit = shape.own.limit;
            descriptor.hits_addend = shape.own.cost.or(self.cost);
            descriptor.is_negative_hits = shape.own.refund;
        }
        request
    }

    fn entries_before(&self, descriptor: usize) -> usize {
        let before = descriptor.checked_sub(1);
        before
            .and_then(|index| self.descriptors.get(index))
            .map_or(0, |shape| shape.end)
    }

    fn keep(&mut self, text: &str) -> Part {
        let start = self.text.len();
        self.text.push_str(text);
        Part {
            start,
            end: self.text.len(),
        }
    }

    fn part(&self, part: Part) -> &str {
        self.text.get(part.start..part.end).unwrap_or_default()
    }
}
