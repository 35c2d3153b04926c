//! A chart of a replay: hit ratio and origin requests over time, for each configuration.
//!
//! The SVG has no script and no font of its own, and follows the reader's choice of light and dark.

use std::fmt::Write;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

use super::Named;
use super::line::{SECOND, Stamp};
use super::simulation::Simulation;
use super::tally::{Step, percent};
use crate::terminal::printable;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const PANEL: f64 = 190.0;
/// So many characters of a name fit into half the width.
const NAME: usize = 40;

const STYLE: &str = "
  svg { color-scheme: light dark; font: 13px system-ui, sans-serif }
  .back { fill: #ffffff } text { fill: #24292f } .soft { fill: #57606a } .grid { stroke: #d0d7de; stroke-width: 1 }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round }
  .c0 { stroke: #0969da } .c1 { stroke: #bc4c00; stroke-dasharray: 6 3 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #30363d }
    .c0 { stroke: #58a6ff } .c1 { stroke: #f0883e }
  }";

/// The chart.
pub fn svg(log: &str, plans: &[Named], results: &[Simulation<'_>]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>Replay of {}</title>\n<style>{STYLE}\n</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        escape(log)
    );
    for (index, (named, result)) in plans.iter().zip(results).enumerate() {
        let left = LEFT + (WIDTH - LEFT - RIGHT) / 2.0 * index as f64;
        let _ = writeln!(out, "<path class=\"line c{index}\" d=\"M{left} 20h24\"/>");
        let total = format!("{} ({:.1} %)", ending(&named.name), result.total.hit_ratio());
        let _ = writeln!(out, "<text x=\"{}\" y=\"24\">{}</text>", left + 30.0, escape(&total));
    }
    let end = results.iter().map(|result| end(result)).max().unwrap_or(0);
    let start = results.iter().map(|result| result.timeline.start).min().unwrap_or(0);
    let axis = Axis { start, end: end.max(start + SECOND) };
    axis.dates(&mut out);
    let ratio = |step: &Step, _: f64| (step.requests > 0).then(|| percent(step.saved, step.requests));
    let load = |step: &Step, seconds: f64| Some(step.origin as f64 / seconds);
    panel(&mut out, "hit ratio, %", 50.0, 100.0, &axis, results, &ratio);
    let most = results.iter().flat_map(|result| {
        let line = &result.timeline;
        line.steps.iter().enumerate().map(|(number, step)| step.origin as f64 / line.seconds(number))
    });
    panel(&mut out, "origin requests a second", 300.0, round_up(most.fold(0.0, f64::max)), &axis, results, &load);
    axis.times(&mut out);
    out.push_str("</svg>\n");
    out
}

fn end(result: &Simulation<'_>) -> Stamp {
    let line = &result.timeline;
    (line.start + line.width * line.steps.len() as u64).min(line.last - line.last % SECOND + SECOND)
}

struct Axis {
    start: Stamp,
    end: Stamp,
}

impl Axis {
    fn x(&self, at: Stamp) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at.saturating_sub(self.start) as f64 / (self.end - self.start) as f64
    }

    /// From which day to which.
    fn dates(&self, out: &mut String) {
        let day = |at| calendar(at).format(format_description!("[year]-[month]-[day]")).unwrap_or_default();
        let (first, last) = (day(self.start), day(self.end - SECOND));
        let days = if first == last { first } else { format!("{first} to {last}") };
        let _ =
            writeln!(out, "<text class=\"soft\" x=\"{}\" y=\"58\" text-anchor=\"end\">{days}</text>", WIDTH - RIGHT);
    }

    fn times(&self, out: &mut String) {
        let span = (self.end - self.start) / SECOND;
        for step in 0..=4 {
            let at = self.start + (self.end - self.start) / 4 * step;
            let when = calendar(at);
            let text = if span > 2 * 86_400 {
                when.format(format_description!("[year]-[month]-[day] [hour]:[minute]"))
            } else {
                when.format(format_description!("[hour]:[minute]:[second]"))
            };
            let anchor = ["start", "middle", "middle", "middle", "end"][step as usize];
            let _ = writeln!(
                out,
                "<text class=\"soft\" x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                self.x(at),
                HEIGHT - 20.0,
                text.unwrap_or_default()
            );
        }
        let _ = writeln!(out, "<text class=\"soft\" x=\"8\" y=\"{}\">UTC</text>", HEIGHT - 20.0);
    }
}

/// One diagram: a line for each configuration, broken where there is nothing to show.
fn panel(
    out: &mut String,
    title: &str,
    top: f64,
    most: f64,
    axis: &Axis,
    results: &[Simulation<'_>],
    value: &dyn Fn(&Step, f64) -> Option<f64>,
) {
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{title}</text>", top + 8.0);
    let bottom = top + 20.0 + PANEL;
    for part in 0..=4 {
        let (y, mark) = (bottom - PANEL / 4.0 * f64::from(part), most / 4.0 * f64::from(part));
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            plain(mark)
        );
    }
    for (index, result) in results.iter().enumerate() {
        let line = &result.timeline;
        let (mut path, mut pen) = (String::new(), 'M');
        for (number, step) in line.steps.iter().enumerate() {
            let Some(value) = value(step, line.seconds(number)) else {
                pen = 'M';
                continue;
            };
            let x = axis.x(line.start + line.width * number as u64) / 2.0
                + axis.x((line.start + line.width * (number as u64 + 1)).min(axis.end)) / 2.0;
            let y = bottom - PANEL * (value / most).clamp(0.0, 1.0);
            let _ = write!(path, "{pen}{x:.1} {y:.1}");
            // A point that stands alone is seen, too.
            if pen == 'M' {
                path.push_str("h.5");
            }
            pen = 'L';
        }
        let _ = writeln!(out, "<path class=\"line c{index}\" d=\"{path}\"/>");
    }
}

fn calendar(at: Stamp) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::from_secs(at / SECOND)
}

/// A number without zeros behind it: quarters of what [`round_up`] gives are not rounded.
fn plain(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The end of a name: of a path it says more than its beginning.
fn ending(name: &str) -> String {
    match name.chars().count().checked_sub(NAME) {
        None | Some(0) => name.to_owned(),
        Some(more) => format!("\u{2026}{}", name.chars().skip(more + 1).collect::<String>()),
    }
}

/// The next number that begins with 1, 2, 4 or 8 and ends with nothing but zeros.
fn round_up(number: f64) -> f64 {
    let mut scale = 0.01;
    loop {
        for step in [1.0, 2.0, 4.0, 8.0] {
            if number <= step * scale || scale > 1e12 {
                return step * scale;
            }
        }
        scale *= 10.0;
    }
}

/// Text for XML, which knows no control characters.
fn escape(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        for (number, expected) in
            [(0.0, 0.01), (0.3, 0.4), (1.0, 1.0), (1.1, 2.0), (99.0, 100.0), (2001.0, 4000.0), (5.0, 8.0)]
        {
            assert!((round_up(number) - expected).abs() < expected * 1e-6, "{number}");
        }
        assert_eq!(escape("<a & b>"), "&lt;a &amp; b&gt;");
        assert_eq!(escape("a\x1b\u{9b}]\u{fffe}"), "a\u{fffd}\u{fffd}]\u{fffd}");
        let marks: Vec<_> = (0..=4).map(|part| plain(round_up(0.9) / 4.0 * f64::from(part))).collect();
        assert_eq!(marks, ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!([0.0, 0.0075, 25.0, 1e6].map(plain), ["0", "0.0075", "25", "1000000"]);
        let long = ending(&"/folder".repeat(10));
        assert!(long.starts_with('\u{2026}') && long.ends_with("/folder") && long.chars().count() == NAME, "{long}");
        assert_eq!(ending("new.yaml"), "new.yaml");
    }
}
