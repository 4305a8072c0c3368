//! One YAML file as a tree with places, whatever it is about: rule files, and experiments, which
//! are read with the same words for the same things.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    rc::Rc,
    sync::Arc,
};

pub(crate) use crate::config::{
    concurrency::read as read_concurrency,
    limits::RawLimits,
    reader::{Located, Reader},
    yaml::Node,
};
use crate::config::{
    expand,
    finding::{Position, Problem},
    options::LoadOptions,
    yaml,
};

/// Reads a file that is no rule file. Without a tree, or with one that is broken, the reader has
/// an error.
pub(crate) fn open(path: &Path, empty: &str) -> (Reader, Option<Rc<Node>>) {
    let mut reader = Reader::new(Arc::from(path.display().to_string()));
    let text = text(path, LoadOptions::default().max_file_bytes);
    let root = read(&mut reader, text, empty);
    (reader, root)
}

pub(super) fn text(path: &Path, max_bytes: u64) -> Result<String, Problem> {
    let problem = |what: String| Problem {
        at: Position::default(),
        what,
    };
    let cannot = |error: io::Error| problem(format!("cannot be read: {error}"));
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(cannot)?;
    // One more than allowed, to tell a file of exactly that size from a larger one.
    let limited = file
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes);
    let length = limited.map_err(cannot)?;
    if u64::try_from(length).unwrap_or(u64::MAX) > max_bytes {
        return Err(problem(format!("larger than {max_bytes} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        problem(format!("not UTF-8 at byte {valid}"))
    })
}

/// Reads the first document of a text. After an error: as far as it was read. `empty` is what to
/// do about a file with nothing in it.
pub(super) fn read(
    reader: &mut Reader,
    text: Result<String, Problem>,
    empty: &str,
) -> Option<Rc<Node>> {
    let document = match text {
        Ok(text) => yaml::read(&text),
        Err(problem) => yaml::Document {
            error: Some(problem),
            ..yaml::Document::default()
        },
    };
    if let Some(at) = document.ignored {
        reader.warn(
            at,
            "only the first document of a file is read",
            "put the rest into a file of its own",
        );
    }
    let root = document.root;
    let problem = document
        .error
        .or_else(|| root.as_deref().and_then(|root| expand::check(root).err()));
    if let Some(Problem { at, what }) = problem {
        reader.error(at, what, "");
    } else if root.is_none() {
        reader.error(START, "the file is empty", empty);
    }
    root
}

/// Where something is said of a file as a whole.
pub(super) const START: Position = Position { line: 1, column: 1 };
