package gvisor

import (
	"github.com/carboy/carboy/internal/bottle"
)

func readPosture(shim int, r createReply) (bottle.Posture, error) {
	return bottle.Posture{Isolation: bottle.IsolationUserKernel, Backend: name}, nil
}
