// Package hostile holds nothing but tests: attacks on real bottles, made
// through the public API as anybody would use it. docs/promises.md says which
// test tries to break which promise.
//
// Most attacks are the corpus that users run too (internal/corpus); here are the
// tests that hold carboy to it, and what can't be done on anybody's machine:
// killing carboy, devices made by root, floods that take long. For each refusal
// the nearest neighbour, which looks much the same and is allowed, must work.
package hostile
