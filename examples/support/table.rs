//! A table of a balancer's statistics, redrawn in place.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    sync::Arc,
};

use counterpoise::{
    Stats,
    observe::{EndpointState, EndpointStats},
};

/// Draws statistics: on a terminal in place, elsewhere as a line for each tenth frame.
#[derive(Debug)]
pub(crate) struct Table {
    in_place: bool,
    frames: u32,
    /// How many lines the last frame has, which the next overwrites.
    height: usize,
    /// The picks at the last frame: shares are those of the time since then.
    picks: HashMap<Arc<str>, u64>,
}

/// One in so many frames is printed if the output is not a terminal: one a second.
const SPARSE: u32 = 10;

/// The width of a full bar, in characters.
const BAR: usize = 20;

impl Table {
    pub(crate) fn new() -> Self {
        let in_place = io::stdout().is_terminal();
        Self {
            in_place,
            frames: 0,
            height: 0,
            picks: HashMap::new(),
        }
    }

    /// Draws a frame below a headline.
    pub(crate) fn draw(&mut self, headline: &str, stats: &Stats) -> io::Result<()> {
        self.frames += 1;
        if !self.in_place && !self.frames.is_multiple_of(SPARSE) {
            return Ok(());
        }
        let shares = self.shares(stats);
        let frame = if self.in_place {
            self.rows(headline, stats, &shares)
        } else {
            line(headline, stats, &shares)
        };
        let mut out = io::stdout().lock();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }

    /// Returns each endpoint's share of the picks since the last frame, in its order.
    fn shares(&mut self, stats: &Stats) -> Vec<f64> {
        let mut since = |endpoint: &EndpointStats| {
            let before = self
                .picks
                .insert(Arc::clone(&endpoint.name), endpoint.picks);
            endpoint.picks.saturating_sub(before.unwrap_or(0))
        };
        let picks: Vec<u64> = stats.endpoints.iter().map(&mut since).collect();
        let total = picks.iter().sum::<u64>().max(1);
        picks
            .iter()
            .map(|&picks| picks as f64 / total as f64)
            .collect()
    }

    fn rows(&mut self, headline: &str, stats: &Stats, shares: &[f64]) -> String {
        let mut lines = vec![
            headline.to_owned(),
            String::new(),
            "  endpoint   state      in flight   failures   share".to_owned(),
        ];
        lines.extend(
            stats
                .endpoints
                .iter()
                .zip(shares)
                .map(|(endpoint, &share)| row(endpoint, share)),
        );
        let mut frame = match self.height {
            0 => String::new(),
            height => format!("\x1b[{height}A"),
        };
        for line in &lines {
            // Each line erases the former line.
            let _infallible = writeln!(frame, "\x1b[2K{line}");
        }
        self.height = lines.len();
        frame
    }
}

fn row(endpoint: &EndpointStats, share: f64) -> String {
    let colour = match endpoint.state {
        EndpointState::Serving => "\x1b[32m",
        EndpointState::Ejected => "\x1b[31m",
        _ => "\x1b[33m",
    };
    let bar = "█".repeat((share * BAR as f64).round() as usize);
    format!(
        "  {:<10} {colour}{:<10}\x1b[0m {:>9} {:>10}   {bar:<BAR$} {:>3.0} %",
        endpoint.name,
        endpoint.state,
        endpoint.in_flight,
        missed(endpoint),
        100.0 * share,
    )
}

fn line(headline: &str, stats: &Stats, shares: &[f64]) -> String {
    let mut line = headline.to_owned();
    for (endpoint, share) in stats.endpoints.iter().zip(shares) {
        let (name, state, missed) = (&endpoint.name, endpoint.state, missed(endpoint));
        let _infallible = write!(
            line,
            " | {name} {state} {:.0} %, {missed} failed",
            100.0 * share
        );
    }
    line.push('\n');
    line
}

/// Returns failures and drops: a timeout above the balancer drops the call.
fn missed(endpoint: &EndpointStats) -> u64 {
    endpoint.failures + endpoint.drops
}
