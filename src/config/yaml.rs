//! From text to a tree with places: the first document of a YAML file.
//!
//! The events of `saphyr` accept and refuse like the reference service's parser; the tree is built
//! here because a field given twice must not be an error, and because every node needs its place.

use std::{borrow::Cow, collections::HashMap, rc::Rc};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::config::{
    dialect::{self, Stretch},
    finding::{Position, Problem},
    lenient::Lenient,
    scalar::{self, Scalar, TAG_PREFIX},
};

/// Lists and mappings inside each other; a descriptor takes two levels.
const DEEPEST: usize = 200;

/// A value with its place.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Scalar(Word),
    List(Vec<Rc<Node>>),
    /// In the order of the file; a key may come twice.
    Map(Vec<(Rc<Node>, Rc<Node>)>),
    /// `*name`
    Alias(Rc<Node>),
}

/// A scalar as it is written, and what it is.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) text: Box<str>,
    pub(super) value: Scalar,
    /// The key `<<`, which takes over the fields of another mapping.
    pub(super) merge: bool,
    /// Written as `null`, `~`, nothing or `!!null`: leaves a field that is a mapping unset. Other
    /// spellings of null count as an empty mapping there.
    pub(super) unset: bool,
}

/// What was read of a file.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// The value of the document; none for an empty file. After an error: as far as it was read.
    pub(super) root: Option<Rc<Node>>,
    /// What the parser could not read.
    pub(super) error: Option<Problem>,
    /// Where something begins that is not read: a second document.
    pub(super) ignored: Option<Position>,
}

impl Node {
    /// The node that an alias stands for; else the node itself.
    pub(super) fn target(&self) -> &Self {
        match &self.content {
            Content::Alias(node) => node.target(),
            _ => self,
        }
    }

    /// True for a list, and for what stands for one.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.target().content, Content::List(_))
    }
}

/// Reads the first document.
pub(super) fn read(text: &str) -> Document {
    // A byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(problem) = dialect::unreadable_character(text) {
        return Document {
            error: Some(problem),
            ..Document::default()
        };
    }
    let text = if text.contains('\r') {
        Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(text)
    };
    let mut lenient = Lenient::new(text);
    loop {
        let mut builder = Builder::new(&lenient);
        let error = builder.build();
        let document = builder.finish();
        match error {
            Some(error) if lenient.ease(&error) => {}
            Some(_) if lenient.is_exhausted() => return given_up(document),
            _ => return document,
        }
    }
}

/// Says that it was not the last place alone.
fn given_up(mut document: Document) -> Document {
    if let Some(problem) = &mut document.error {
        problem.what.push_str(
            "; this is taken as YAML 1.1 takes it, but there are too many lines like this",
        );
    }
    document
}

/// Puts events together.
struct Builder<'t> {
    lenient: &'t Lenient<'t>,
    document: Document,
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    /// The root is complete.
    done: bool,
    /// What the text is covered with.
    stretches: Vec<Stretch>,
}

/// A list or mapping whose end has not come yet.
struct Open {
    span: Span,
    anchor: usize,
    content: OpenContent,
}

enum OpenContent {
    List(Vec<Rc<Node>>),
    Map(Vec<(Rc<Node>, Rc<Node>)>, Option<Rc<Node>>),
}

type Flow = std::ops::ControlFlow<()>;

impl<'t> Builder<'t> {
    fn new(lenient: &'t Lenient<'t>) -> Self {
        Self {
            lenient,
            document: Document::default(),
            open: Vec::new(),
            anchors: HashMap::new(),
            done: false,
            stretches: Vec::new(),
        }
    }

    /// Reads events up to the end of the document or the first problem; an error of the parser
    /// itself is returned as well.
    fn build(&mut self) -> Option<ScanError> {
        let mut parser = Parser::new_from_str(self.lenient.text());
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => {
                    if self.on_event(event, span).is_break() {
                        return None;
                    }
                }
                Err(error) => {
                    let at = self.lenient.position(*error.marker());
                    if self.done {
                        // The reference's parser stops at the end of the root.
                        self.document.ignored = Some(at);
                        return None;
                    }
                    let what = error.info().to_owned();
                    self.document.error = Some(Problem { at, what });
                    return Some(error);
                }
            }
        }
        None
    }

    fn on_event(&mut self, event: Event<'_>, span: Span) -> Flow {
        let at = self.lenient.position(span.start);
        match event {
            Event::DocumentStart(_) if self.done => {
                self.document.ignored = Some(at);
                return Flow::Break(());
            }
            Event::StreamEnd => return Flow::Break(()),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return self.fail(at, "an anchor contains itself".to_owned());
                };
                self.place(
                    Rc::new(Node {
                        at,
                        content: Content::Alias(node),
                    }),
                    0,
                );
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.stretches.push(Stretch::scalar(span, style));
                let bare = text.is_empty() && style == ScalarStyle::Plain;
                if bare && anchor == 0 && tag.is_none() && self.expects_key() {
                    return self.fail(at, "a key is missing before the colon".to_owned());
                }
                let content = match word(&text, style, tag.as_deref()) {
                    Ok(word) => Content::Scalar(word),
                    Err(what) => return self.fail(at, what),
                };
                self.place(Rc::new(Node { at, content }), anchor);
            }
            Event::SequenceStart(anchor, _) => {
                return self.open(span, anchor, OpenContent::List(Vec::new()));
            }
            Event::MappingStart(anchor, _) => {
                return self.open(span, anchor, OpenContent::Map(Vec::new(), None));
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(Some(span)),
        }
        Flow::Continue(())
    }

    /// Whether the next node is a key of the innermost mapping.
    fn expects_key(&self) -> bool {
        let open = self.open.last().map(|open| &open.content);
        matches!(open, Some(OpenContent::Map(_, None)))
    }

    fn open(&mut self, span: Span, anchor: usize, content: OpenContent) -> Flow {
        if self.open.len() >= DEEPEST {
            let what = format!("nested deeper than {DEEPEST} levels");
            return self.fail(self.lenient.position(span.start), what);
        }
        self.open.push(Open {
            span,
            anchor,
            content,
        });
        Flow::Continue(())
    }

    fn close(&mut self, end: Option<Span>) {
        let Some(Open {
            span,
            anchor,
            content,
        }) = self.open.pop()
        else {
            return;
        };
        if let Some(end) = end {
            self.stretches.push(Stretch::collection(span, end));
        }
        let at = self.lenient.position(span.start);
        let content = match content {
            OpenContent::List(items) => Content::List(items),
            OpenContent::Map(entries, _) => Content::Map(entries),
        };
        self.place(Rc::new(Node { at, content }), anchor);
    }

    fn place(&mut self, node: Rc<Node>, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(OpenContent::List(items)) => items.push(node),
            Some(OpenContent::Map(entries, key)) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(node),
            },
            None => {
                self.document.root = Some(node);
                self.done = true;
            }
        }
    }

    fn fail(&mut self, at: Position, what: String) -> Flow {
        self.document.error = Some(Problem { at, what });
        Flow::Break(())
    }

    /// Closes what is open, so that the domain's name can be told even of a broken file.
    fn finish(mut self) -> Document {
        while !self.open.is_empty() {
            self.close(None);
        }
        if self.document.error.is_none() {
            self.document.error =
                dialect::check(self.lenient, &self.stretches, self.document.ignored);
        }
        self.document
    }
}

fn word(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Word, String> {
    let tag = tag.map(|tag| format!("{}{}", tag.handle, tag.suffix));
    let core = tag.as_deref().and_then(|tag| tag.strip_prefix(TAG_PREFIX));
    let mut text = Box::from(text);
    let value = match (&tag, core) {
        (_, Some("binary")) => {
            text = scalar::decoded(&text)?;
            Scalar::Text
        }
        (_, Some(kind)) => scalar::resolve_as(kind, &text)?,
        (None, None) if style == ScalarStyle::Plain => scalar::resolve(&text),
        // Quotes, and tags that nobody knows, make texts.
        (_, None) => Scalar::Text,
    };
    let implicit = match tag.as_deref() {
        None => style == ScalarStyle::Plain,
        Some(tag) => tag == "!",
    };
    let unset = core.is_some() || ["", "~", "null"].contains(&&*text);
    Ok(Word {
        merge: &*text == "<<" && (implicit || core == Some("merge")),
        text,
        value,
        unset: value == Scalar::Null && unset,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{LoadOptions, parse};

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(
            text in "([-?:,\\[\\]{}#&*!|>'\"%@` \t\n\r.~=<]|domain|descriptors|key|value|rate_limit|unit|limits|[a-z0-9é\u{85}\u{feff}]){0,60}"
        ) {
            let document = read(&text);
            prop_assert!(document.error.is_none() || document.ignored.is_none());
            let loaded = parse(&[("f.yaml", &text)], &LoadOptions::default());
            prop_assert!(loaded.has_errors() || loaded.domains.len() == 1);
        }
    }
}
