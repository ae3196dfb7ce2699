package gvisor

import (
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
)

func TestContract(t *testing.T) {
	bottletest.Run(t, func() bottle.Backend { return Backend{} })
}
