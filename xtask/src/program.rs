//! Running other programs: bounded in time, quiet unless they fail, and ended with us.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, PipeReader, Write, pipe},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    cleanup::{Guard, RUN, this_run},
    machine,
};

/// Lines of output that an error shows.
const LINES_SHOWN: usize = 60;

/// A command for a program, wherever it is installed, that reads nothing from our input.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(
        machine::find(name).map_or_else(|| name.into(), std::path::PathBuf::into_os_string),
    );
    command.stdin(Stdio::null()).current_dir(machine::root());
    command
}

/// A command for cargo, the one that runs us.
pub(crate) fn cargo<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = program(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.args(arguments);
    command
}

/// How a program ended.
pub(crate) struct Ended {
    /// Its exit status.
    pub(crate) status: ExitStatus,
    /// The output, both streams together.
    pub(crate) output: String,
}

/// Runs to the end and returns what it printed.
///
/// # Errors
/// With the end of its output, when it fails or takes longer than `limit`.
pub(crate) fn run(command: Command, limit: Duration) -> Result<String> {
    let what = describe(&command);
    let ended = finish(command, limit, false)?;
    if !ended.status.success() {
        bail!("{what} failed ({}):\n{}", ended.status, last_lines(&ended.output));
    }
    Ok(ended.output)
}

/// As [`run`], passing its output on while it runs. A failure is in the status.
pub(crate) fn show(command: Command, limit: Duration) -> Result<Ended> {
    println!("    $ {}", describe(&command));
    finish(command, limit, true)
}

/// Runs to the end, whatever the status.
pub(crate) fn finish(mut command: Command, limit: Duration, pass_on: bool) -> Result<Ended> {
    let what = describe(&command);
    let (reader, writer) = pipe().context("pipe")?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = spawn(&mut command)?;
    // Our ends of the pipe go with the command.
    drop(command);
    let lines = thread::spawn(move || collect(reader, pass_on));
    let status = child.wait(limit)?;
    let Some(status) = status else {
        child.kill();
        let output = lines.join().unwrap_or_default();
        bail!(
            "{what} took longer than {} s and was ended:\n{}",
            limit.as_secs(),
            last_lines(&output)
        );
    };
    Ok(Ended { status, output: lines.join().unwrap_or_default() })
}

fn collect(reader: PipeReader, pass_on: bool) -> String {
    let mut output = String::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        if pass_on {
            print!("    {text}");
            let _ = std::io::stdout().flush();
        }
        output.push_str(&text);
        line.clear();
    }
    output
}

/// A program in a process group of its own, which ends with us.
pub(crate) struct Running {
    child: Child,
    group: Pid,
    guard: Option<Guard>,
}

/// Starts a program.
pub(crate) fn spawn(command: &mut Command) -> Result<Running> {
    let child = command
        .process_group(0)
        .env(RUN, this_run())
        .spawn()
        .with_context(|| format!("starting {}", describe(command)))?;
    let group = Pid::from_child(&child);
    let guard = Guard::new(move || {
        let _ = kill_process_group(group, Signal::KILL);
    });
    Ok(Running { child, group, guard: Some(guard) })
}

impl Running {
    /// Waits for its end; `None` when it has not ended within `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            if let Some(status) = self.child.try_wait()? {
                // All programs that it started in its group end too.
                self.guard = None;
                return Ok(Some(status));
            }
            if begun.elapsed() >= limit {
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Ends it at once, as a power cut of the process would.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.guard = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.kill();
        }
    }
}

/// The command line, for people.
pub(crate) fn describe(command: &Command) -> String {
    let name = std::path::Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    command.get_args().fold(name, |line, argument| {
        let argument = argument.to_string_lossy();
        if argument.contains(' ') {
            format!("{line} '{argument}'")
        } else {
            format!("{line} {argument}")
        }
    })
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}
