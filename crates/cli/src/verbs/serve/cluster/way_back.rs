//! The command of `--on-replaced`: what a takeover did for clients to come here, undone.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::hook::Hook;

/// Why a server serves no more, as its command finds it in `ONEFOLD_WHY`.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// Another one took over.
    Replaced,
    /// A signal came.
    Asked,
    /// It failed.
    Failed,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Replaced => "replaced",
            Why::Asked => "asked",
            Why::Failed => "failed",
        }
    }
}

/// The command, once a takeover began. The thread that ends the server has it, and the one that ends the process
/// when the first one waits for a cluster that does not answer.
#[derive(Clone, Default)]
pub(super) struct WayBack(Arc<Mutex<Option<Hook>>>);

impl WayBack {
    /// A takeover begins, with a command or without.
    pub(super) fn begin(&self, hook: Option<Hook>) {
        *self.0.lock() = hook;
    }

    /// Runs the command, once for each takeover; who comes second waits until it has ended. When it fails the log
    /// says so, and all else goes on.
    pub(super) fn go(&self, why: Why) {
        let mut way_back = self.0.lock();
        let Some(mut hook) = way_back.take() else { return };
        hook.variables.push(("ONEFOLD_WHY", why.word().to_owned()));
        // The server is ending already: nothing ends the command before its time is over.
        let mut waits = |time: Duration| {
            std::thread::sleep(time);
            None::<Infallible>
        };
        if let Err(error) = hook.run(&mut waits) {
            tracing::error!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_runs_once_for_each_takeover_and_both_wait_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("said");
        let command = format!("sleep 0.2; echo $ONEFOLD_WHY >> {}", file.display());
        let hook =
            || Hook { option: "--on-replaced", command: command.clone(), variables: Vec::new() };
        let said = || std::fs::read_to_string(&file).unwrap_or_default();
        let way_back = WayBack::default();
        way_back.go(Why::Failed);
        assert_eq!(said(), "");
        for takeover in 1..3 {
            way_back.begin(Some(hook()));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        way_back.go(Why::Asked);
                        assert_eq!(said().lines().count(), takeover);
                    });
                }
            });
        }
        assert_eq!(said(), "asked\nasked\n");
    }
}
