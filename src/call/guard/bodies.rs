//! Calls that go on after their response has begun: until a body ends.

use std::sync::Arc;

use tokio::time::Instant;

use crate::call::guard::{Guard, Stage};
use crate::{
    cluster::node::{Ending, Verdict},
    health::outcome::Outcome,
    load::Sign,
};

impl Guard {
    /// Hands the call over to another guard; this one has nothing left to do.
    pub(crate) fn hand_over(&mut self) -> Self {
        let stage = std::mem::replace(&mut self.stage, Stage::Closed);
        Self {
            node: Arc::clone(&self.node),
            epoch: self.epoch,
            version: self.version,
            trial: self.trial,
            parked: std::mem::take(&mut self.parked),
            stage,
            started: self.started,
            bounded: std::mem::take(&mut self.bounded),
        }
    }

    /// Notes that the response has begun, and that its end decides: an endpoint on trial may be
    /// tried by another call if that takes long.
    pub(crate) fn answer(&self) {
        if self.trial {
            let (id, epoch) = (self.node.id, self.epoch);
            self.report_to_cluster(|door| door.answer_trial(id, epoch, Instant::now()));
        }
    }

    /// Ends a call whose outcome is told.
    pub(crate) fn finish(&mut self) {
        if let Stage::Told(ending) = self.stage {
            self.stage = Stage::Closed;
            self.node.counters.end(ending);
        }
    }

    /// Ends a call whose caller has seen a good beginning, and wants no more. That says nothing
    /// of the endpoint, but that it works, and that the end would have taken longer still.
    pub(crate) fn let_go(&mut self) {
        if self.stage == Stage::Running {
            let verdict = if self.trial { Verdict::Good } else { Verdict::Nothing };
            self.end(Ending::Dropped, verdict, Sign::Dropped);
        }
    }

    /// Tells the outcome of a call that goes on until its body ends.
    pub(crate) fn tell(&mut self, outcome: Outcome) {
        let ending = self.judge(outcome);
        self.stage = Stage::Told(ending);
    }
}
