//! Results as people read them: tables as text, figures as SVG.

pub mod figure;
pub mod svg;
pub mod table;
