package main

// S3, S5: bottles that were frozen.

var freezeMutants = []mutant{
	{
		Name: "frozen-files-are-believed", Promise: "S3",
		Why:     "an image that somebody else wrote is read",
		Package: ".", Tests: []string{"TestResumeRefuses"}, Says: "a bit of",
		edits: []edit{{"freeze.go", "err == nil && now != p {", "err == nil && now == (store.KeptPart{}) {"}},
	},
	{
		Name: "bottles-are-resumed-twice", Promise: "S5",
		Why:     "two carboys go on with one bottle",
		Package: ".", Tests: []string{"TestResumeRefuses"}, Says: "resumed twice",
		edits: []edit{{"internal/store/kept.go", "err = s.sys.Flock(fd, how|unix.LOCK_NB); errors.Is", "err = nil; errors.Is"}},
	},
	{
		Name: "destroy-does-not-wait", Promise: "S5",
		Why:     "a bottle that is being started goes on after its destroy",
		Package: ".", Tests: []string{"TestDestroyRacesStart"}, Says: "after",
		edits: []edit{{"internal/store/kept.go", "err = s.sys.Flock(fd, how|unix.LOCK_NB); errors.Is", "err = nil; errors.Is"}},
	},
	{
		Name: "authorities-change", Promise: "S3",
		Why:     "a resumed bottle has another authority than its processes trust",
		Package: ".", Tests: []string{"TestFreezeResume"}, Says: "another authority",
		edits: []edit{{"vessel.go", "if p.identity != nil {", "if false {"}},
	},
}
