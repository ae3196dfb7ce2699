package docker

import (
	"os"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/bottle/docker/dockertest"
)

func TestMain(m *testing.M) {
	if os.Args[0] == victimName {
		victim()
	}
	bottletest.Main()
	os.Exit(m.Run())
}

// withEngine starts an Engine for one test.
func withEngine(t *testing.T, options ...string) *dockertest.Engine {
	t.Helper()
	e := dockertest.Start(t, options...)
	t.Cleanup(func() { e.Stop(t) })
	return e
}

func TestContract(t *testing.T) {
	withEngine(t)
	bottletest.Run(t, func() bottle.Backend { return Backend{} })
}
