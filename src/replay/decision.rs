//! One request of a trace and what became of it.

use smallvec::SmallVec;

use crate::{
    algorithm::Outcome,
    engine::verdict::{Code, Verdict},
    model::request::Request,
    rules::{limit::Limit, tree::Rule},
};

/// One request and its verdict.
#[derive(Debug)]
pub struct Decision<'a> {
    /// What was asked.
    pub request: Request<'a>,
    /// What was answered.
    pub verdict: Verdict<'a>,
}

/// A limit that a request was over.
#[derive(Debug)]
pub struct Over<'a> {
    /// Index of the descriptor in the request.
    pub descriptor: usize,
    /// The rule; none for a limit that came with the request.
    pub rule: Option<&'a Rule>,
    /// The limit.
    pub limit: &'a Limit,
    /// What it said.
    pub outcome: &'a Outcome,
}

impl Decision<'_> {
    /// The request does not pass.
    pub fn refused(&self) -> bool {
        self.verdict.code == Code::OverLimit
    }

    /// The limits on account of which the request does not pass; none when it does.
    pub fn over(&self) -> SmallVec<[Over<'_>; 2]> {
        let mut all = SmallVec::new();
        if !self.refused() {
            return all;
        }
        for (descriptor, status) in self.verdict.statuses().enumerate() {
            let Some(touched) = status.touched.filter(|_| status.code == Code::OverLimit) else {
                continue;
            };
            let rule = touched.rule().map(AsRef::as_ref);
            for (counter, outcome) in touched.counters().zip(status.outcomes) {
                if !outcome.allowed {
                    all.push(Over {
                        descriptor,
                        rule,
                        limit: counter.limit,
                        outcome,
                    });
                }
            }
        }
        all
    }
}
