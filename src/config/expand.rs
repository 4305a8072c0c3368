//! What following every alias costs: the bound that keeps a small file from becoming a huge tree.

use crate::config::{
    finding::Problem,
    reader::is_merge,
    yaml::{Content, Node},
};

/// Values below this many are never too many, however they come about.
const FEW: u64 = 400_000;
/// From here on, at most a tenth of the values may come from aliases.
const MANY: u64 = 4_000_000;

/// Counts values as the reference's YAML library does, and checks what it checks on the way: keys
/// are scalars, and `<<` takes mappings.
pub(super) fn check(root: &Node) -> Result<(), Problem> {
    Count::default().value(root)
}

#[derive(Default)]
struct Count {
    values: u64,
    from_aliases: u64,
    /// Aliases that are being followed.
    depth: u32,
}

impl Count {
    fn value(&mut self, node: &Node) -> Result<(), Problem> {
        self.values += 1;
        if self.depth > 0 {
            self.from_aliases += 1;
        }
        if self.is_excessive() {
            return Err(Problem {
                at: node.at,
                what: "too many values come from aliases".to_owned(),
            });
        }
        match &node.content {
            Content::Scalar(_) => Ok(()),
            Content::List(items) => items.iter().try_for_each(|item| self.value(item)),
            Content::Map(entries) => entries.iter().try_for_each(|(key, value)| {
                if is_merge(key) {
                    return self.merge(value);
                }
                self.value(key)?;
                match &key.target().content {
                    Content::Scalar(_) => self.value(value),
                    _ => Err(Problem {
                        at: key.at,
                        what: "a list or a mapping cannot be a key".to_owned(),
                    }),
                }
            }),
            Content::Alias(node) => {
                self.depth += 1;
                let counted = self.value(node);
                self.depth -= 1;
                counted
            }
        }
    }

    fn merge(&mut self, value: &Node) -> Result<(), Problem> {
        let wrong = |node: &Node| Problem {
            at: node.at,
            what: "`<<` takes a mapping or a list of mappings".to_owned(),
        };
        let is_map = |node: &Node| matches!(node.target().content, Content::Map(_));
        match &value.content {
            Content::Map(_) => self.value(value),
            Content::Alias(_) if is_map(value) => self.value(value),
            Content::List(items) => items.iter().rev().try_for_each(|item| {
                if is_map(item) {
                    self.value(item)
                } else {
                    Err(wrong(item))
                }
            }),
            _ => Err(wrong(value)),
        }
    }

    fn is_excessive(&self) -> bool {
        if self.from_aliases <= 100 || self.values <= 1_000 {
            return false;
        }
        // In ten-thousandths: 99 % up to FEW, then falling to 10 % at MANY.
        let allowed = match self.values {
            ..=FEW => 9_900,
            MANY.. => 1_000,
            values => 9_900 - 8_900 * (values - FEW) / (MANY - FEW),
        };
        self.from_aliases * 10_000 > allowed * self.values
    }
}
