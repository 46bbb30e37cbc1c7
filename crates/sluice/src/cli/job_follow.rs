//! Progress of a job until its end: a bar on a terminal, lines elsewhere.

use super::converse;
use super::job::{one, path_of, percent, rate};
use indicatif::{ProgressBar, ProgressStyle};
use sluice_api::client::Client;
use sluice_control::drives::{JobState, JobView};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use std::io::IsTerminal;
use std::time::Duration;

/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(250);

const TEMPLATE: &str = "{prefix} [{bar:30}] {percent:>3} % {binary_bytes}/{binary_total_bytes} {msg}";

/// Shows the progress of a job on standard error until it ends, and the job on standard output then.
///
/// # Errors
/// Returns an error if the job is cancelled, or the daemon does not answer.
pub(super) fn follow(id: &str, client: &Client, output: Output) -> Result<(), ApiError> {
    let path = path_of(id);
    let mut screen = Screen::new(id);
    loop {
        let job = converse(client.get::<JobView>(&path))?;
        screen.show(&job);
        match job.state {
            JobState::Running | JobState::Paused => std::thread::sleep(LOOK),
            JobState::Cancelled => {
                screen.end();
                return Err(ApiError::conflict(format!("the job {id} was cancelled"))
                    .hint(format!("`sluice job resume {id}` goes on with it")));
            }
            JobState::Failed => {
                screen.end();
                return Err(ApiError::conflict(format!("the job {id} has failed")));
            }
            JobState::Done => {
                screen.end();
                return output.answer(&job, one);
            }
        }
    }
}

/// Standard error, as a terminal or not.
enum Screen {
    Bar(ProgressBar),
    /// Last line, which is not repeated.
    Lines(String),
}

impl Screen {
    fn new(id: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(String::new());
        }
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::Bar(ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_prefix(id.to_owned()))
    }

    fn show(&mut self, job: &JobView) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(job.total);
                bar.set_position(job.done);
                bar.set_message(state(job));
            }
            Self::Lines(last) => {
                let line = format!("{}: {} %, {}", job.id, percent(job), job.state.word());
                if line != *last {
                    eprintln!("{line}");
                    *last = line;
                }
            }
        }
    }

    fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

fn state(job: &JobView) -> String {
    match job.state {
        JobState::Running => rate(job),
        state => state.word().to_owned(),
    }
}
