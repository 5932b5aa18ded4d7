//! The licences of everything that is linked into the product or used to test it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::program::{cargo, run};

/// Licences that can be combined with Apache-2.0 OR MIT.
const ALLOWED: [&str; 12] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // Of data alone: the list of root certificates in `webpki-root-certs`, which `reqwest` builds for systems
    // without such a list of their own, so that no program for Linux has it. It asks for its text to be kept with
    // the data, and nothing of what is made by it.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// Compares the licence of every package that cargo knows with the list; returns how many packages
/// there are under each.
pub(crate) fn check() -> Result<String> {
    let mut command = cargo(["metadata", "--format-version", "1", "--locked", "--quiet"]);
    command.stderr(std::process::Stdio::null());
    let metadata = run(command, Duration::from_secs(120))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        let licence = package["license"].as_str().unwrap_or("none");
        if !allowed(licence) {
            wrong.push(format!("{name} {}: {licence}", package["version"].as_str().unwrap_or("?")));
        }
        *counts.entry(licence).or_default() += 1;
    }
    if !wrong.is_empty() {
        bail!(
            "licences that are not on the list in xtask/src/licences.rs:\n    {}",
            wrong.join("\n    ")
        );
    }
    Ok(format!("{} packages under {} different terms", packages.len(), counts.len()))
}

/// True when the terms of an SPDX expression can be met with licences of the list.
fn allowed(expression: &str) -> bool {
    // The old way of writing OR is a slash.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met = any(&mut rest);
    met == Some(true) && rest.is_empty()
}

/// A list joined by OR; `None` when it can't be read.
fn any(words: &mut &[&str]) -> Option<bool> {
    let mut met = all(words)?;
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        met |= all(words)?;
    }
    Some(met)
}

/// A list joined by AND, which binds tighter.
fn all(words: &mut &[&str]) -> Option<bool> {
    let mut met = one(words)?;
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        met &= one(words)?;
    }
    Some(met)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    let (&first, rest) = words.split_first()?;
    *words = rest;
    if first == "(" {
        let met = any(words)?;
        let (&close, rest) = words.split_first()?;
        *words = rest;
        return (close == ")").then_some(met);
    }
    if words.first() == Some(&"WITH") {
        let exception = words.get(1)?;
        let met = ALLOWED.contains(&format!("{first} WITH {exception}").as_str());
        *words = &words[2..];
        return Some(met);
    }
    Some(ALLOWED.contains(&first))
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn a_choice_needs_one_allowed_licence_and_a_conjunction_needs_all() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        assert!(allowed("Apache-2.0 WITH LLVM-exception OR GPL-2.0"));
        for bad in [
            "",
            "none",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT",
            "MIT)",
            "GPL-2.0 WITH Classpath-exception-2.0",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
