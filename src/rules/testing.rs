//! Rules by hand, for tests of layers below `config`.

use std::sync::Arc;

use crate::{
    model::{
        limit::{Algorithm, Quota},
        time::Span,
    },
    rules::{
        Domain, OnStoreFailure, Rules, Stacking,
        answer::Answer,
        limit::Limit,
        tree::{Child, Level, Node, Rule, Source},
    },
};

/// `units` per `period`, as `config` would make it of a rule without further words.
pub(crate) fn limit(algorithm: Algorithm, units: u64, period: Span) -> Limit {
    Limit::new(algorithm, Quota::per(units, period).unwrap())
}

/// A rule for any value of `key`. Several limits get different discriminators.
pub(crate) fn rule(key: &str, limits: Vec<Limit>) -> Rule {
    let several = limits.len() > 1;
    let numbered = limits.into_iter().zip(1..).map(|(limit, n)| Limit {
        discriminator: if several { n } else { limit.discriminator },
        ..limit
    });
    Rule {
        path: key.to_owned(),
        limits: numbered.collect(),
        ..Rule::default()
    }
}

/// The domain `edge` with these rules at its first level.
pub(crate) fn edge(stacking: Stacking, rules: Vec<Rule>) -> Domain {
    let mut root = Level::default();
    for (line, rule) in (1..).zip(rules) {
        let key = rule.path.clone();
        let rule = Rule {
            path: format!("edge.{key}"),
            source: Source {
                file: "edge.yaml".into(),
                line,
                column: 1,
            },
            ..rule
        };
        let node = Node {
            key: key.into(),
            rule: Some(Arc::new(rule)),
            ..Node::default()
        };
        root.insert(Child::Any, node).unwrap();
    }
    Domain {
        name: "edge".into(),
        stacking,
        on_store_failure: OnStoreFailure::default(),
        spread: false,
        refuse_unknown: false,
        answer: Answer::default(),
        root,
        files: vec!["edge.yaml".into()],
    }
}

/// Only the domain of [`edge`].
pub(crate) fn rules(stacking: Stacking, rules: Vec<Rule>) -> Rules {
    Rules::new([edge(stacking, rules)])
}
