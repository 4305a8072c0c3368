//! A whole run: the first call, the lanes, one rate after the other.

use std::time::Duration;

use tokio::{runtime, time::timeout};

use crate::{
    bench::{
        Plan,
        error::BenchError,
        lane::{self, Handle, Said, Step},
        probe::{Probed, probe},
        record::Record,
        report::StepReport,
        schedule::Share,
    },
    model::time::{Clock, Span},
};

/// From the order to start until the schedule starts, so that every lane has heard it.
const LEAD: Span = Span::from_millis(20);
/// How long the first answer may take.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Hears how the run goes.
pub trait Listener {
    /// The first call was answered.
    fn probed(&mut self, probed: &Probed);
    /// A rate was measured.
    fn measured(&mut self, step: &StepReport);
}

/// Sends the plan's load. Blocks the calling thread, which must not be one of a runtime, for about
/// the number of rates times (warm-up + duration); at most a drain longer for each.
///
/// # Errors
/// When the server cannot be reached or does not answer the first call. What fails later is
/// counted in the report.
pub fn run(plan: &Plan, listener: &mut impl Listener) -> Result<Vec<StepReport>, BenchError> {
    listener.probed(&first(plan)?);
    let clock = Clock::kernel();
    let mut lanes = start(plan, &clock)?;
    let mut reports = Vec::with_capacity(plan.rates.len());
    for &rate in &plan.rates {
        let start = clock.now().steady + LEAD;
        for lane in &lanes {
            let step = Step { rate, start };
            lane.steps
                .blocking_send(step)
                .map_err(|_| BenchError::LaneEnded)?;
        }
        let mut sum: Option<Box<Record>> = None;
        for lane in &mut lanes {
            match heard(lane)? {
                Said::Measured(record) => match &mut sum {
                    Some(sum) => sum.add(&record),
                    None => sum = Some(record),
                },
                Said::Ready => return Err(BenchError::LaneEnded),
                Said::Failed(error) => return Err(error.into()),
            }
        }
        let record = sum.ok_or(BenchError::LaneEnded)?;
        let report = StepReport::new(rate, plan.duration, &record);
        listener.measured(&report);
        reports.push(report);
    }
    Ok(reports)
}

fn first(plan: &Plan) -> Result<Probed, BenchError> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(runtime::LocalOptions::default())?;
    runtime.block_on(async {
        timeout(FIRST_ANSWER, probe(plan))
            .await
            .unwrap_or(Err(BenchError::Silent(FIRST_ANSWER)))
    })
}

fn start(plan: &Plan, clock: &Clock) -> Result<Vec<Handle>, BenchError> {
    let of = plan.lanes.min(plan.connections).get();
    let mut lanes = Vec::with_capacity(of);
    for index in 0..of {
        lanes.push(lane::spawn(
            plan.clone(),
            Share { index, of },
            clock.clone(),
        )?);
    }
    for lane in &mut lanes {
        match heard(lane)? {
            Said::Ready => {}
            Said::Measured(_) => return Err(BenchError::LaneEnded),
            Said::Failed(error) => return Err(error.into()),
        }
    }
    Ok(lanes)
}

fn heard(lane: &mut Handle) -> Result<Said, BenchError> {
    lane.said.blocking_recv().ok_or(BenchError::LaneEnded)
}
