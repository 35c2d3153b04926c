//! The fuzz targets (fuzz/) with the seeds that are kept: what was found once is not lost again.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::Path;

#[path = "../fuzz/src/lib.rs"]
#[allow(missing_docs)]
mod targets;

use targets::TARGETS;

#[test]
fn every_target_takes_its_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, target) in TARGETS {
        let mut seeds: Vec<_> = std::fs::read_dir(folder.join(name))
            .unwrap_or_else(|error| panic!("fuzz/seeds/{name}: {error}"))
            .map(|seed| seed.unwrap().path())
            .collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name} has no seed");
        for seed in seeds {
            let data = std::fs::read(&seed).unwrap();
            if std::panic::catch_unwind(|| target(&data)).is_err() {
                panic!("fuzz/seeds/{name}/{} shows a fault", seed.file_name().unwrap().display());
            }
            target(&[]);
        }
    }
}

#[test]
fn every_target_can_be_fuzzed() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |folder: &str| -> BTreeSet<String> {
        let files = std::fs::read_dir(fuzz.join(folder)).unwrap().map(|file| file.unwrap().path());
        files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stems("fuzz_targets"), names);
    assert_eq!(stems("seeds"), names, "a folder of seeds without a target is read by nobody");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(manifest.contains(&format!("[[bin]]\nname = \"{name}\"\n")), "fuzz/Cargo.toml names {name}");
    }
}
