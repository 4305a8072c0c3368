//! `slice:` of a limit.

use crate::{
    config::{
        reader::{Located, Reader},
        scalar::Scalar,
        yaml::{Content, Node},
    },
    model::time::Span,
    rules::limit::Slice,
};

const NAMES: [&str; 2] = ["size", "max_staleness"];

/// Blocks larger than this take too much from the others at once.
const LARGEST: u64 = 1_000_000;

/// Longer blocks are as good as a limit per process; shorter ones are not worth their way.
const SHORTEST: Span = Span::from_millis(1);
const LONGEST: Span = Span::from_secs(10);

pub(super) fn read(reader: &mut Reader, node: &Node) -> Located<Slice> {
    let mut slice = Slice {
        size: None,
        max_staleness: Span::from_millis(100),
    };
    reader.own_fields(node, &NAMES, &mut |reader, name, value| match name {
        "size" => slice.size = size(reader, value),
        "max_staleness" => {
            let Some(span) = reader.span(value) else {
                return;
            };
            if span < SHORTEST || span > LONGEST {
                reader.error(
                    value.at,
                    "a block is held for 1ms to 10s",
                    "write a time between these",
                );
            }
            slice.max_staleness = span;
        }
        _ => {}
    });
    Located {
        value: slice,
        at: node.at,
    }
}

/// None: `auto`, or wrong.
fn size(reader: &mut Reader, node: &Node) -> Option<u64> {
    let size = match &node.target().content {
        Content::Scalar(word) if &*word.text == "auto" => return None,
        Content::Scalar(word) => match word.value {
            Scalar::Int(int) => u64::try_from(int).ok(),
            _ => None,
        },
        _ => None,
    };
    let size = size.filter(|size| (1..=LARGEST).contains(size));
    if size.is_none() {
        reader.wrong_type(node, "`auto` or a whole number from 1 to 1000000");
    }
    size
}
