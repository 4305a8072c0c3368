//! A [`Figure`] as SVG.

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::chart::figure::{Figure, Ink, Layer, Panel};

/// Why nothing was drawn.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), ChartError>;

const WIDTH: u32 = 960;
const MARGIN: i32 = 16;
/// Room for a panel's own axis.
const LEFT: i32 = 72;
const LINE: i32 = 20;
const PANEL: u32 = 124;
/// Room for a panel's title, part of its height.
const TITLE: u32 = 26;
/// Room for the axis of time.
const AXIS: u32 = 44;

const BLACK_INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const MESH: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

/// Draws a figure on white.
pub fn draw(figure: &Figure) -> Result<String, ChartError> {
    let mut svg = String::new();
    let head = head_height(figure);
    let panels = u32::try_from(figure.panels.len()).unwrap_or(u32::MAX);
    let height = head
        .saturating_add(panels.saturating_mul(PANEL))
        .saturating_add(AXIS);
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        draw_head(&root, figure)?;
        let mut rest = root.clone();
        for (index, panel) in figure.panels.iter().enumerate() {
            let last = index + 1 == figure.panels.len();
            let top = if index == 0 { head } else { 0 };
            let own = top + PANEL + if last { AXIS } else { 0 };
            let (area, below) = rest.split_vertically(own);
            let area = area.margin(top, 0, 0, 0);
            draw_panel(&area, figure, panel, last)?;
            rest = below;
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
    let bold = style(18, BLACK_INK, HPos::Left, VPos::Center);
    let bold = TextStyle {
        font: bold.font.style(FontStyle::Bold),
        ..bold
    };
    write(root, &figure.title, (MARGIN, 24), bold)?;
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

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_panel(area: &Area<'_>, figure: &Figure, panel: &Panel, last: bool) -> Drawn {
    let title = style(14, BLACK_INK, HPos::Left, VPos::Center);
    let title = TextStyle {
        font: title.font.style(FontStyle::Bold),
        ..title
    };
    write(area, &panel.title, (LEFT, 14), title)?;
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
        .build_cartesian_2d(figure.x.0..figure.x.1, 0.0..panel.y_max)
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
        mesh.x_desc(plain(&figure.x_label));
    }
    mesh.draw().map_err(failed)?;
    for layer in &panel.layers {
        draw_layer(&mut chart, figure, panel, layer)?;
    }
    // What they say must not be painted over.
    for layer in &panel.layers {
        if let Layer::Band { ink, x, label } = layer {
            frame_band(&mut chart, figure, panel, (*ink, *x, label))?;
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

fn draw_layer(chart: &mut Chart<'_, '_>, figure: &Figure, panel: &Panel, layer: &Layer) -> Drawn {
    match layer {
        Layer::Bars {
            ink,
            width,
            heights,
        } => {
            let fill = colour(*ink).filled();
            let mut left = figure.x.0;
            let mut bars = Vec::new();
            for height in heights {
                let right = (left + width).min(figure.x.1);
                if *height > 0.0 && right > left {
                    let top = height.min(panel.y_max);
                    bars.push(Rectangle::new([(left, 0.0), (right, top)], fill));
                }
                left += width;
            }
            chart.draw_series(bars).map_err(failed)?;
        }
        Layer::Band { ink, x, .. } => {
            let (left, right) = (x.0, x.1.min(figure.x.1));
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
            let ends = [(figure.x.0, *y), (figure.x.1, *y)];
            let line = PathElement::new(ends, colour(*ink).stroke_width(1));
            chart.draw_series([line]).map_err(failed)?;
            let text = style(12, colour(*ink), HPos::Right, VPos::Bottom);
            let text = Text::new(plain(label), (figure.x.1, *y), text);
            chart.draw_series([text]).map_err(failed)?;
        }
    }
    Ok(())
}

/// The edges of a band and its label.
fn frame_band(
    chart: &mut Chart<'_, '_>,
    figure: &Figure,
    panel: &Panel,
    (ink, (from, until), label): (Ink, (f64, f64), &str),
) -> Drawn {
    let colour = colour(ink);
    let until = until.min(figure.x.1);
    for x in [from, until] {
        let edge = PathElement::new([(x, 0.0), (x, panel.y_max)], colour.stroke_width(1));
        chart.draw_series([edge]).map_err(failed)?;
    }
    let gap = (figure.x.1 - figure.x.0) / 160.0;
    let left_room = from - figure.x.0;
    let right_room = figure.x.1 - until;
    let (x, horizontal) = if right_room >= left_room {
        (until + gap, HPos::Left)
    } else {
        (from - gap, HPos::Right)
    };
    let text = style(13, colour, horizontal, VPos::Top);
    let text = TextStyle {
        font: text.font.style(FontStyle::Bold),
        ..text
    };
    let text = Text::new(plain(label), (x, panel.y_max * 0.97), text);
    chart.draw_series([text]).map_err(failed)?;
    Ok(())
}
