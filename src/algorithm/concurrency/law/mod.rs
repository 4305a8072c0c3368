//! Laws that adapt a concurrency limit to what the service behind it can do.
//!
//! A [`Controller`] is fed with every finished request and says what the limit is now. It collects
//! requests into windows; what happens at the end of a window is the [`Law`]'s business.

mod aimd;
mod change;
mod gradient2;
mod target;
mod vegas;
mod window;

use crate::model::time::{Span, Timestamp};

pub use self::{
    aimd::{Aimd, AimdSettings},
    change::{Change, Reason},
    gradient2::{Gradient2, Gradient2Settings},
    target::{Guard, Target, TargetSettings},
    vegas::{Vegas, VegasSettings},
    window::{Sample, Window},
};

/// How a limit is found, as a rule states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawSettings {
    /// It is given.
    Fixed(u64),
    /// Throughput times target latency, with a guard against targets that cannot be reached.
    Target(TargetSettings),
    /// One more at each good window, a tenth less at each bad one.
    Aimd(AimdSettings),
    /// The estimated queue is kept between two bounds.
    Vegas(VegasSettings),
    /// Recent latency against its long-term mean.
    Gradient2(Gradient2Settings),
}

impl LawSettings {
    /// The largest limit that can come out: a request for more permits never passes.
    pub const fn most(&self) -> u64 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Target(settings) => settings.max,
            Self::Aimd(settings) => settings.max,
            Self::Vegas(settings) => settings.max,
            Self::Gradient2(settings) => settings.max,
        }
    }

    /// Length of a window unless a rule says otherwise.
    ///
    /// The knee guard compares the throughput of single windows, and accepts a wrong step now and
    /// then when those are noisy: 2 s instead of 1 s raise the goodput of a service that became
    /// half as fast from 42 to 47 of 50 per second, at a target of 350 ms.
    pub const fn default_window(&self) -> Span {
        match self {
            Self::Target(settings) if matches!(settings.guard, Guard::Knee) => TWO_WINDOWS,
            _ => WINDOW,
        }
    }

    /// Whether the limit moves by itself.
    pub const fn adapts(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }
}

/// A law with its state.
#[derive(Clone, Debug)]
pub enum Law {
    /// See [`LawSettings::Fixed`].
    Fixed(u64),
    /// See [`LawSettings::Target`].
    Target(Target),
    /// See [`LawSettings::Aimd`].
    Aimd(Aimd),
    /// See [`LawSettings::Vegas`].
    Vegas(Vegas),
    /// See [`LawSettings::Gradient2`].
    Gradient2(Gradient2),
}

impl From<LawSettings> for Law {
    fn from(settings: LawSettings) -> Self {
        match settings {
            LawSettings::Fixed(limit) => Self::Fixed(limit),
            LawSettings::Target(settings) => Self::Target(Target::new(settings)),
            LawSettings::Aimd(settings) => Self::Aimd(Aimd::new(settings)),
            LawSettings::Vegas(settings) => Self::Vegas(Vegas::new(settings)),
            LawSettings::Gradient2(settings) => Self::Gradient2(Gradient2::new(settings)),
        }
    }
}

impl Law {
    /// The limit to enforce now.
    pub fn limit(&self) -> u64 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Target(law) => law.limit(),
            Self::Aimd(law) => law.limit(),
            Self::Vegas(law) => law.limit(),
            Self::Gradient2(law) => law.limit(),
        }
    }

    /// One step: takes in a window, or a single request as [`Window::of`].
    pub fn step(&mut self, window: &Window) -> Reason {
        match self {
            Self::Fixed(_) => Reason::Hold,
            Self::Target(law) => law.step(window),
            Self::Aimd(law) => law.step(window),
            Self::Vegas(law) => law.step(window),
            Self::Gradient2(law) => law.step(window),
        }
    }
}

/// A law and the window it is collecting.
#[derive(Clone, Debug)]
pub struct Controller {
    law: Law,
    /// None: the law steps at each request.
    window: Option<window::Collector>,
    last: Option<Change>,
}

/// Length of a window of most laws.
const WINDOW: Span = Span::from_secs(1);
/// Length of a window when single windows are compared.
const TWO_WINDOWS: Span = Span::from_secs(2);

/// A window stays open until it has this many requests.
pub const SAMPLES: u64 = 10;

impl Controller {
    /// Starts at `now`; the law steps once per `window` of at least [`SAMPLES`] requests, or at
    /// each request when there is none.
    pub fn new(settings: LawSettings, window: Option<Span>, now: Timestamp) -> Self {
        Self {
            law: settings.into(),
            window: window.map(|length| window::Collector::new(length, SAMPLES, now)),
            last: None,
        }
    }

    /// The limit to enforce now.
    pub fn limit(&self) -> u64 {
        self.law.limit()
    }

    /// The latest change of the limit, for people who ask why.
    pub const fn last_change(&self) -> Option<&Change> {
        self.last.as_ref()
    }

    /// Takes in a finished request. Says so when the limit is another one now.
    pub fn finished(&mut self, sample: Sample, now: Timestamp) -> Option<Change> {
        if matches!(self.law, Law::Fixed(_)) {
            return None;
        }
        let window = match &mut self.window {
            Some(collector) => collector.add(sample, now)?,
            None => Window::of(sample),
        };
        let from = self.limit();
        let reason = self.law.step(&window);
        let to = self.limit();
        let change = (from != to).then_some(Change {
            from,
            to,
            reason,
            window,
        })?;
        self.last = Some(change);
        Some(change)
    }
}

#[cfg(test)]
mod tests;
