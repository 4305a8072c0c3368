//! Panels one above the other that share an axis.

use plotters::{
    coord::types::RangedCoordf64,
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{Area, BLACK_INK, Drawn, MARGIN, WIDTH, bold, colour, failed, plain, style, write};
use crate::chart::figure::{Ink, Layer, Panel, Panels};

/// Room for a panel's own axis.
const LEFT: i32 = 72;
/// Height of a panel.
const PANEL: u32 = 124;
/// Room for a panel's title, part of its height.
const TITLE: u32 = 26;
/// Room for the axis of time.
const AXIS: u32 = 44;

const MESH: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

/// How high they are together.
pub(super) fn height(panels: &Panels) -> u32 {
    let count = u32::try_from(panels.list.len()).unwrap_or(u32::MAX);
    count.saturating_mul(PANEL).saturating_add(AXIS)
}

/// Draws them.
pub(super) fn draw(area: &Area<'_>, panels: &Panels) -> Drawn {
    let mut rest = area.clone();
    for (index, panel) in panels.list.iter().enumerate() {
        let last = index + 1 == panels.list.len();
        let (own, below) = rest.split_vertically(PANEL + if last { AXIS } else { 0 });
        draw_panel(&own, panels, panel, last)?;
        rest = below;
    }
    Ok(())
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_panel(area: &Area<'_>, axis: &Panels, panel: &Panel, last: bool) -> Drawn {
    write(
        area,
        &panel.title,
        (LEFT, 14),
        bold(14, BLACK_INK, HPos::Left, VPos::Center),
    )?;
    let right = i32::try_from(WIDTH).unwrap_or(i32::MAX) - MARGIN;
    write(
        area,
        &panel.note,
        (right, 14),
        style(13, BLACK_INK, HPos::Right, VPos::Center),
    )?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(TITLE)
        .margin_right(MARGIN)
        .margin_bottom(8)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, if last { AXIS } else { 0 })
        .build_cartesian_2d(axis.x.0..axis.x.1, 0.0..panel.y_max)
        .map_err(failed)?;
    let label = style(12, BLACK_INK, HPos::Left, VPos::Center);
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(WHITE.mix(0.0))
        .bold_line_style(MESH)
        .axis_style(BLACK_INK.mix(0.5))
        .label_style(label.clone())
        .axis_desc_style(label)
        .x_labels(12)
        .y_labels(4)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y));
    if last {
        mesh.x_desc(plain(&axis.x_label));
    }
    mesh.draw().map_err(failed)?;
    for layer in &panel.layers {
        draw_layer(&mut chart, axis, panel, layer)?;
    }
    // What they say must not be painted over.
    for layer in &panel.layers {
        if let Layer::Band { ink, x, label } = layer {
            frame_band(&mut chart, axis, panel, (*ink, *x, label))?;
        }
    }
    drop(chart);
    // Beside the middle of the axis, upwards.
    let upwards = style(12, BLACK_INK, HPos::Center, VPos::Center);
    let upwards = upwards.transform(FontTransform::Rotate270);
    let middle = i32::try_from(u32::midpoint(PANEL, TITLE)).unwrap_or(i32::MAX);
    write(area, &panel.y_label, (MARGIN, middle), upwards)
}

/// A number of an axis without zeros behind the point.
fn short(number: f64) -> String {
    let text = format!("{number:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

fn draw_layer(chart: &mut Chart<'_, '_>, axis: &Panels, panel: &Panel, layer: &Layer) -> Drawn {
    match layer {
        Layer::Bars {
            ink,
            width,
            heights,
        } => {
            let fill = colour(*ink).filled();
            let mut left = axis.x.0;
            let mut bars = Vec::new();
            for height in heights {
                let right = (left + width).min(axis.x.1);
                if *height > 0.0 && right > left {
                    let top = height.min(panel.y_max);
                    bars.push(Rectangle::new([(left, 0.0), (right, top)], fill));
                }
                left += width;
            }
            chart.draw_series(bars).map_err(failed)?;
        }
        Layer::Band { ink, x, .. } => {
            let (left, right) = (x.0, x.1.min(axis.x.1));
            let fill = colour(*ink).mix(0.12).filled();
            let area = Rectangle::new([(left, 0.0), (right, panel.y_max)], fill);
            chart.draw_series([area]).map_err(failed)?;
        }
        Layer::Dots { ink, points } => {
            let fill = colour(*ink).filled();
            let dots = points.iter().map(|point| Circle::new(*point, 2, fill));
            chart.draw_series(dots).map_err(failed)?;
        }
        Layer::Line { ink, points } => {
            let line = PathElement::new(points.clone(), colour(*ink).stroke_width(2));
            chart.draw_series([line]).map_err(failed)?;
        }
        Layer::Level { ink, y, label } => {
            let ends = [(axis.x.0, *y), (axis.x.1, *y)];
            let line = PathElement::new(ends, colour(*ink).stroke_width(1));
            chart.draw_series([line]).map_err(failed)?;
            let text = style(12, colour(*ink), HPos::Right, VPos::Bottom);
            let text = Text::new(plain(label), (axis.x.1, *y), text);
            chart.draw_series([text]).map_err(failed)?;
        }
    }
    Ok(())
}

/// The edges of a band and its label.
fn frame_band(
    chart: &mut Chart<'_, '_>,
    axis: &Panels,
    panel: &Panel,
    (ink, (from, until), label): (Ink, (f64, f64), &str),
) -> Drawn {
    let colour = colour(ink);
    let until = until.min(axis.x.1);
    for x in [from, until] {
        let edge = PathElement::new([(x, 0.0), (x, panel.y_max)], colour.stroke_width(1));
        chart.draw_series([edge]).map_err(failed)?;
    }
    let gap = (axis.x.1 - axis.x.0) / 160.0;
    let left_room = from - axis.x.0;
    let right_room = axis.x.1 - until;
    let (x, horizontal) = if right_room >= left_room {
        (until + gap, HPos::Left)
    } else {
        (from - gap, HPos::Right)
    };
    let text = bold(13, colour, horizontal, VPos::Top);
    let text = Text::new(plain(label), (x, panel.y_max * 0.97), text);
    chart.draw_series([text]).map_err(failed)?;
    Ok(())
}
