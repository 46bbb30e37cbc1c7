//! Orders of an operator, and their answers.

use super::ParityFunction;
use super::wire::ArrayOrder;
use crate::services::service::{json, parse};
use sluice_jobs::{Order, Verb};
use sluice_redundancy::Members;
use sluice_redundancy::parity::Parity;
use sluice_uif::{Control, Io};

/// Name of the comparison, which an order may name.
const CHECK_JOB: &str = "check";

impl ParityFunction {
    /// Executes an order. Some are answered when the log has their effect.
    pub(super) fn take_order(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let answer = match Order::parse(text) {
            Some(order) => order.and_then(|order| self.execute_job(order, io.now_ns())),
            None => parse::<Self>(text).and_then(|order| self.execute(order)),
        };
        let answer = match self.leaving || self.ordered || self.changing {
            true => Control::Later,
            false => Control::Now(answer),
        };
        self.run(io);
        answer
    }

    /// Executes an order. Returns the status of the array.
    fn execute(&mut self, order: ArrayOrder) -> Result<String, String> {
        let Some(array) = &mut self.array else { return Err(self.error.clone()) };
        let parity = &mut array.parity;
        if order == ArrayOrder::Recompute {
            parity.trust_data()?;
            self.ordered = !array.is_open;
            return Ok(parity.status().to_string());
        }
        if !array.is_open {
            return Err(self.error.clone());
        }
        let all = parity.status().members;
        match order {
            ArrayOrder::Status | ArrayOrder::Recompute => {}
            ArrayOrder::Resync => parity.bring_back(all, false)?,
            ArrayOrder::ResyncMember { member } => parity.bring_back(one(all, member)?, false)?,
            ArrayOrder::FailMember { member } => {
                one(all, member)?;
                parity.take_out(member)?;
                self.leaving = true;
            }
            ArrayOrder::Parities { parities } => {
                parity.set_parities(parities)?;
                self.changing = parity.is_changing();
            }
            ArrayOrder::Check => {
                whole(parity)?;
                parity.check();
            }
        }
        Ok(parity.status().to_string())
    }

    fn execute_job(&mut self, order: Order, now_ns: u64) -> Result<String, String> {
        let parity = self.array.as_mut().filter(|array| array.is_open).map(|array| &mut array.parity);
        match (order, parity) {
            (Order::List, parity) => json(&parity.map(|parity| parity.jobs()).unwrap_or_default()),
            (Order::Do(verb, name, change), Some(parity)) => {
                if (verb, name.as_str()) == (Verb::Resume, CHECK_JOB) {
                    whole(parity)?;
                }
                json(&parity.order_job(verb, &name, change, now_ns)?)
            }
            (_, None) => Err(self.error.clone()),
        }
    }

    /// Answers the order that begins an array anew, once it serves or has failed.
    pub(super) fn answer_order(&mut self, io: &mut Io<'_>) {
        if std::mem::take(&mut self.ordered) {
            let array = self.array.as_ref().filter(|array| array.is_open);
            let status = array.map(|array| array.parity.status().to_string());
            io.answer(status.ok_or_else(|| self.error.clone()));
        }
    }

    /// Answers the removal of a member, once the log has it. Without the log the member would be back after a
    /// restart, with the content of any disk in its place.
    pub(super) fn answer_leaving(&mut self, io: &mut Io<'_>) {
        if !self.leaving {
            return;
        }
        let parity = self.array.as_ref().filter(|array| array.is_open).map(|array| &array.parity);
        let answer = match parity.map(|parity| (parity.is_noted(), parity.status())) {
            None => Err(self.error.clone()),
            Some((true, status)) => Ok(status.to_string()),
            Some((_, status)) if !status.log_is_broken => return,
            Some(_) => Err("it is out until a restart: mend the log, and say this again".into()),
        };
        self.leaving = false;
        io.answer(answer);
    }

    /// Answers a change of the number of parities, once the log has it or it was not done.
    pub(super) fn answer_changing(&mut self, io: &mut Io<'_>) {
        if !self.changing {
            return;
        }
        let parity = self.array.as_ref().filter(|array| array.is_open).map(|array| &array.parity);
        let answer = match parity {
            // The next opening reads the number from the log.
            None => {
                Err(format!("the array has stopped; look at `status` when it serves again: {}", self.error))
            }
            Some(parity) if parity.is_changing() => return,
            Some(parity) => match parity.change_failure() {
                Some(words) => Err(words.to_owned()),
                None => Ok(parity.status().to_string()),
            },
        };
        if let Ok(status) = &answer {
            tracing::info!(status, "the number of parities of an array was changed");
        }
        self.changing = false;
        io.answer(answer);
    }
}

/// Checks that no member lacks something: an array without all of them is not compared.
fn whole(parity: &Parity) -> Result<(), String> {
    let status = parity.status();
    match status.state() {
        "in sync" => Ok(()),
        state => Err(format!("a comparison needs all members, and the array is {state}")),
    }
}

/// Returns one of the members.
fn one(all: Members, member: usize) -> Result<Members, String> {
    match all.contains(member) {
        true => Ok(Members::one(member)),
        false => Err(format!("there is no member {member}; they are {all:?}")),
    }
}
