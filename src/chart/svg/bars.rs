//! A row for each case, a bar for each measure.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{Area, BLACK_INK, Drawn, MARGIN, WIDTH, bold, colour, failed, style, write};
use crate::chart::figure::{Bar, Bars, Ink, Measure};

/// Room for the names of the cases.
const NAMES: i32 = 250;
/// Room for the titles of the measures.
const TITLES: i32 = 34;
/// Height of a case.
const ROW: i32 = 26;
/// Between two measures, and where the figures stand.
const GAP: i32 = 64;

/// How high they are together.
pub(super) fn height(bars: &Bars) -> u32 {
    let rows = u32::try_from(bars.rows.len()).unwrap_or(u32::MAX);
    let rows = rows.saturating_mul(ROW.unsigned_abs());
    rows.saturating_add(TITLES.unsigned_abs() + MARGIN.unsigned_abs())
}

/// Draws them.
pub(super) fn draw(area: &Area<'_>, bars: &Bars) -> Drawn {
    for (row, name) in (0..).zip(&bars.rows) {
        let text = style(13, BLACK_INK, HPos::Left, VPos::Center);
        write(area, name, (MARGIN, middle(row)), text)?;
    }
    let width = i32::try_from(WIDTH).unwrap_or(i32::MAX);
    let columns = i32::try_from(bars.measures.len()).unwrap_or(1).max(1);
    let step = (width - MARGIN - NAMES) / columns;
    let mut left = NAMES;
    for measure in &bars.measures {
        draw_measure(area, measure, (left, (step - GAP).max(8)))?;
        left += step;
    }
    Ok(())
}

fn middle(row: i32) -> i32 {
    TITLES + row * ROW + ROW / 2
}

fn draw_measure(area: &Area<'_>, measure: &Measure, (left, room): (i32, i32)) -> Drawn {
    let title = bold(13, BLACK_INK, HPos::Left, VPos::Center);
    write(area, &measure.title, (left, TITLES / 2), title)?;
    let full = measure.full.unwrap_or(0.0);
    let most = measure.bars.iter().flatten().fold(full, |most: f64, bar| {
        let accepted = bar.accepted.map_or(0.0, |(_, most)| most);
        most.max(bar.value).max(accepted)
    });
    let scale = if most > 0.0 {
        f64::from(room) / most
    } else {
        0.0
    };
    for (row, bar) in (0..).zip(&measure.bars) {
        let y = middle(row);
        if let Some(bar) = bar {
            draw_bar(area, bar, (left, y), scale)?;
        } else {
            let text = style(12, BLACK_INK, HPos::Left, VPos::Center);
            write(area, "-", (left, y), text)?;
        }
    }
    let rows = i32::try_from(measure.bars.len()).unwrap_or(0);
    let axis = [(left, TITLES), (left, TITLES + rows * ROW)];
    let axis = PathElement::new(axis, BLACK_INK.mix(0.5).stroke_width(1));
    area.draw(&axis).map_err(failed)
}

fn draw_bar(area: &Area<'_>, bar: &Bar, (left, y): (i32, i32), scale: f64) -> Drawn {
    let right = left + pixels(bar.value * scale);
    let filled = Rectangle::new([(left, y - 7), (right, y + 7)], colour(Ink::Blue).filled());
    area.draw(&filled).map_err(failed)?;
    let mut end = right;
    if let Some((least, most)) = bar.accepted {
        let (least, most) = (left + pixels(least * scale), left + pixels(most * scale));
        let range = Rectangle::new(
            [(least, y - 10), (most.max(least + 2), y + 10)],
            colour(Ink::Orange).stroke_width(2),
        );
        area.draw(&range).map_err(failed)?;
        end = end.max(most);
    }
    let text = style(12, BLACK_INK, HPos::Left, VPos::Center);
    write(area, &bar.label, (end + 6, y), text)
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn pixels(length: f64) -> i32 {
    length.max(0.0).round() as i32
}
