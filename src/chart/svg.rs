//! A [`Figure`] as SVG.

mod bars;
mod panels;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::chart::figure::{Body, Figure, Ink};

/// Why nothing was drawn.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), ChartError>;

const WIDTH: u32 = 960;
const MARGIN: i32 = 16;
const LINE: i32 = 20;

const BLACK_INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

/// Draws a figure on white.
pub fn draw(figure: &Figure) -> Result<String, ChartError> {
    let mut svg = String::new();
    let head = head_height(figure);
    let body = match &figure.body {
        Body::Panels(panels) => panels::height(panels),
        Body::Bars(bars) => bars::height(bars),
    };
    {
        let size = (WIDTH, head.saturating_add(body));
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        draw_head(&root, figure)?;
        let (_, area) = root.split_vertically(head);
        match &figure.body {
            Body::Panels(panels) => panels::draw(&area, panels)?,
            Body::Bars(bars) => bars::draw(&area, bars)?,
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

fn head_height(figure: &Figure) -> u32 {
    let lines = figure.notes.len() + usize::from(!figure.legend.is_empty());
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    44_u32.saturating_add(lines.saturating_mul(LINE.unsigned_abs()))
}

/// A colour as it is painted.
fn colour(ink: Ink) -> RGBColor {
    match ink {
        Ink::Grey => RGBColor(0xc8, 0xc8, 0xc8),
        Ink::Blue => RGBColor(0x00, 0x72, 0xb2),
        Ink::Orange => RGBColor(0xd5, 0x5e, 0x00),
        Ink::Green => RGBColor(0x00, 0x9e, 0x73),
        Ink::Purple => RGBColor(0xaa, 0x44, 0x99),
    }
}

fn style(size: i32, colour: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    TextStyle {
        font: ("sans-serif", size).into_font(),
        color: colour.to_backend_color(),
        pos: Pos::new(horizontal, vertical),
    }
}

fn bold(size: i32, colour: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let style = style(size, colour, horizontal, vertical);
    TextStyle {
        font: style.font.style(FontStyle::Bold),
        ..style
    }
}

/// What XML cannot hold is left out.
fn plain(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .collect()
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), style: TextStyle<'static>) -> Drawn {
    area.draw(&Text::new(plain(text), at, style))
        .map_err(failed)
}

fn draw_head(root: &Area<'_>, figure: &Figure) -> Drawn {
    let title = bold(18, BLACK_INK, HPos::Left, VPos::Center);
    write(root, &figure.title, (MARGIN, 24), title)?;
    let mut y = 24 + LINE + 4;
    for note in &figure.notes {
        write(
            root,
            note,
            (MARGIN, y),
            style(13, BLACK_INK, HPos::Left, VPos::Center),
        )?;
        y += LINE;
    }
    let mut x = MARGIN;
    for (ink, label) in &figure.legend {
        let square = Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour(*ink).filled());
        root.draw(&square).map_err(failed)?;
        write(
            root,
            label,
            (x + 18, y),
            style(13, BLACK_INK, HPos::Left, VPos::Center),
        )?;
        x += 18 + width_of(label, 13) + 24;
    }
    Ok(())
}

/// About how wide a text is: nobody knows the font that it will be shown in.
fn width_of(text: &str, size: i32) -> i32 {
    let characters = i32::try_from(text.chars().count()).unwrap_or(i32::MAX);
    characters.saturating_mul(size) * 11 / 20
}
