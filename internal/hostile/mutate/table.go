package main

import "slices"

// mutants are all tables, in the order of the promises.
func mutants() []mutant {
	return slices.Concat(sealMutants, limitMutants, fileMutants, poolMutants, manifestMutants, wireMutants, credentialMutants, scanMutants, gatewayMutants, traceMutants, imageMutants, freezeMutants, superviseMutants, faceMutants, askingMutants, gitMutants, gitGateMutants, scenarioMutants, gateMutants, peopleMutants, workMutants, shipMutants)
}
