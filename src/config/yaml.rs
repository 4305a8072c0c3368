//! From text to a tree with places: the first document of a YAML file.
//!
//! The events of `saphyr` accept and refuse like the reference service's parser; the tree is built
//! here because a field given twice must not be an error, and because every node needs its place.

use std::{collections::HashMap, rc::Rc};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use crate::config::{
    finding::Position,
    scalar::{self, Scalar, TAG_PREFIX},
};

/// Lists and mappings inside each other; a descriptor takes two levels.
const DEEPEST: usize = 256;

/// A value with its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Position,
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

/// Something that is no YAML, or more than we take.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Position,
    pub(super) what: String,
}

impl Node {
    /// The node that an alias stands for; else the node itself.
    pub(super) fn target(&self) -> &Self {
        match &self.content {
            Content::Alias(node) => node.target(),
            _ => self,
        }
    }
}

/// Reads the first document.
pub(super) fn read(text: &str) -> Document {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(problem) = control_character(text) {
        return Document {
            error: Some(problem),
            ..Document::default()
        };
    }
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder::default();
    loop {
        match parser.next_event() {
            None => break,
            Some(Err(error)) => {
                let at = position(*error.marker());
                if builder.done {
                    builder.document.ignored = Some(at);
                } else {
                    builder.document.error = Some(Problem {
                        at,
                        what: error.info().to_owned(),
                    });
                }
                break;
            }
            Some(Ok((event, span))) => {
                if builder.on_event(event, position(span.start)).is_break() {
                    break;
                }
            }
        }
    }
    builder.finish()
}

/// The reference's reader takes tabs, line breaks and printable characters.
fn control_character(text: &str) -> Option<Problem> {
    let (mut line, mut column) = (1, 0);
    for character in text.chars() {
        column += 1;
        match character {
            '\n' => (line, column) = (line + 1, 0),
            '\t' | '\r' | '\u{85}' => {}
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                return Some(Problem {
                    at: Position { line, column },
                    what: format!("control character U+{:04X}", u32::from(character)),
                });
            }
            _ => {}
        }
    }
    None
}

fn position(marker: Marker) -> Position {
    Position {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

/// Puts events together.
#[derive(Default)]
struct Builder {
    document: Document,
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    /// The root is complete.
    done: bool,
}

/// A list or mapping whose end has not come yet.
struct Open {
    at: Position,
    anchor: usize,
    content: OpenContent,
}

enum OpenContent {
    List(Vec<Rc<Node>>),
    Map(Vec<(Rc<Node>, Rc<Node>)>, Option<Rc<Node>>),
}

type Flow = std::ops::ControlFlow<()>;

impl Builder {
    fn on_event(&mut self, event: Event<'_>, at: Position) -> Flow {
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
            Event::Scalar(text, style, anchor, tag) => match word(&text, style, tag.as_deref()) {
                Ok(word) => self.place(
                    Rc::new(Node {
                        at,
                        content: Content::Scalar(word),
                    }),
                    anchor,
                ),
                Err(what) => return self.fail(at, what),
            },
            Event::SequenceStart(anchor, _) => {
                return self.open(at, anchor, OpenContent::List(Vec::new()));
            }
            Event::MappingStart(anchor, _) => {
                return self.open(at, anchor, OpenContent::Map(Vec::new(), None));
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
        }
        Flow::Continue(())
    }

    fn open(&mut self, at: Position, anchor: usize, content: OpenContent) -> Flow {
        if self.open.len() >= DEEPEST {
            return self.fail(at, format!("nested deeper than {DEEPEST} levels"));
        }
        self.open.push(Open {
            at,
            anchor,
            content,
        });
        Flow::Continue(())
    }

    fn close(&mut self) {
        let Some(Open {
            at,
            anchor,
            content,
        }) = self.open.pop()
        else {
            return;
        };
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
            self.close();
        }
        self.document
    }
}

fn word(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Word, String> {
    let tag = tag.map(|tag| format!("{}{}", tag.handle, tag.suffix));
    let text = Box::from(text);
    let value = match tag.as_deref() {
        // A lone `!` makes even a quoted text count as a plain one.
        Some("!") => scalar::resolve(&text),
        Some(tag) => scalar::resolve_tagged(tag, &text)?,
        None if style == ScalarStyle::Plain => scalar::resolve(&text),
        None => Scalar::Text,
    };
    let merge = match tag.as_deref() {
        None => style == ScalarStyle::Plain,
        Some(tag) => tag == "!" || tag.strip_prefix(TAG_PREFIX) == Some("merge"),
    };
    let tagged_null = tag.as_deref().is_some_and(|tag| tag != "!");
    let unset = value == Scalar::Null && (tagged_null || ["", "~", "null"].contains(&&*text));
    Ok(Word {
        merge: merge && &*text == "<<",
        text,
        value,
        unset,
    })
}
